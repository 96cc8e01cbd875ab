"""Cilium's agent on one node: limiters, permits, locks and walks, in virtual time.

The rules are those of the lab's agent (lab/agent/endpoints.py, admission.py, ctgc.py), which was checked against real
agents; the limiter is the very same code. What an endpoint goes through:

    create: limiter → permit → walk TCP → walk other → load → 201
            429 refused; its client gone: a removal, with walks of its own, then 500
    delete: limiter → 404 when unknown, else walks → 200
"""

from __future__ import annotations

from collections.abc import Callable

from loadgen.core.cilium import Profile, api_limits
from loadgen.core.limiter import ApiLimiter, Request, State
from loadgen.core.simulate.costs import Costs, walk_ns
from loadgen.core.simulate.events import Places, Then, Timeline
from loadgen.core.simulate.fleet import AgentSettings
from loadgen.core.simulate.flows import Table

OK, REFUSED, FAILED, UNKNOWN = 201, 429, 500, 404
Answered = Callable[[int], None]
_WAITING = (State.RATE, State.PARALLEL)


class Gate:
    """One API call's limiter, and who waits at it. `enter` answers True admitted, False refused."""

    __slots__ = ("_limiter", "_timeline", "_waiting", "_wake_ns")

    def __init__(self, limiter: ApiLimiter, timeline: Timeline) -> None:
        self._limiter, self._timeline = limiter, timeline
        self._waiting: dict[Request, Callable[[bool], None]] = {}
        self._wake_ns: int | None = None

    def enter(self, decided: Callable[[bool], None]) -> Request:
        request = self._limiter.submit(self._timeline.now_ns)
        if request.waiting:
            self._waiting[request] = decided
            self._wake_at(request.ready_ns if request.state is State.RATE else request.deadline_ns)
        else:
            decided(request.refusal is None)
        self._settle()
        return request

    def leave(self, request: Request) -> None:
        self._limiter.finish(request, self._timeline.now_ns)
        self._settle()

    def hang_up(self, request: Request) -> bool:
        """The client is gone; True when it still waited here. Nobody is told."""
        if self._waiting.pop(request, None) is None:
            return False
        self._limiter.cancel(request, self._timeline.now_ns)
        self._settle()
        return True

    def _settle(self) -> None:
        """Tell those who are decided."""
        if len(self._waiting) == self._limiter.queued:
            return
        for request in [r for r in self._waiting if r.state not in _WAITING]:
            decided = self._waiting.pop(request, None)
            if decided:
                decided(request.refusal is None)

    def _wake_at(self, t_ns: int | None) -> None:
        """Look again then, for what comes by the passing of time alone."""
        if t_ns is not None and (self._wake_ns is None or t_ns < self._wake_ns):
            self._wake_ns = max(t_ns, self._timeline.now_ns)
            self._timeline.at(self._wake_ns, self._wake, self._wake_ns)

    def _wake(self, set_for_ns: int) -> None:
        if set_for_ns != self._wake_ns:
            return  # an earlier one was set since
        self._wake_ns = None
        self._limiter.advance(self._timeline.now_ns)
        self._settle()
        self._wake_at(self._limiter.wake_ns())


class Endpoint:
    """One endpoint from its PUT on. `on_walked`: what a scrub of its address takes along."""

    __slots__ = (
        "answer", "building", "built", "gone", "known", "on_walked", "removal", "removed", "request", "ticket",
    )  # fmt: skip

    def __init__(self, answer: Answered, on_walked: Then | None = None) -> None:
        self.answer = answer
        self.on_walked = on_walked
        self.request: Request | None = None
        self.ticket: list[Then | None] | None = None
        self.known = self.building = self.built = self.gone = self.removed = False
        self.removal: list[Then] | None = None
        """Who waits for its removal; None: it is not being removed."""


class Agent:
    """The agent of a node with these tables. `busy` counts what is under way: walks, builds, queues."""

    def __init__(
        self,
        timeline: Timeline,
        tables: tuple[Table, Table],
        of: Profile,
        settings: AgentSettings,
        permits: int,
        costs: Costs,
    ) -> None:
        self.timeline, self.tables, self.costs = timeline, tables, costs
        self.batch = of.batch_walk
        limits = api_limits(of, settings.api_rate_limit)
        self._creates = Gate(ApiLimiter(limits["endpoint-create"]), timeline)
        self._deletes = Gate(ApiLimiter(limits["endpoint-delete"]), timeline)
        self.permits = Places(permits)
        self.locks = (Places(1), Places(1))
        self.busy = 0
        self.walked_ns = {"scrub": 0, "gc": 0}
        self.walks = {"scrub": 0, "gc": 0}

    # --- walks ------------------------------------------------------------------------------------------------

    def scrub(self, then: Then) -> None:
        """Walk both tables, one after the other, each under its lock; then go on."""
        self._scrub_table(0, then)

    def _scrub_table(self, which: int, then: Then) -> None:
        def locked() -> None:
            table, timeline = self.tables[which], self.timeline
            took_ns = walk_ns(self.costs, table.capacity, table.entries(timeline.now_ns), 0, batch=self.batch)
            self.walked_ns["scrub"] += took_ns
            self.walks["scrub"] += 1
            timeline.after(took_ns, walked)

        def walked() -> None:
            # The next in line reads the clock at this very instant, before the walker goes on, as with a real lock.
            self.locks[which].give_back()
            if which == 0:
                self._scrub_table(1, then)
            else:
                then()

        self.locks[which].take(locked)

    # --- create -----------------------------------------------------------------------------------------------

    def create(self, endpoint: Endpoint) -> None:
        """PUT. `endpoint.answer` gets the status unless its client has hung up before."""
        self.busy += 1

        def decided(admitted: bool) -> None:
            if not admitted:
                self._answered(endpoint, REFUSED)
                return
            endpoint.known = True
            endpoint.ticket = self.permits.take(lambda: self._build(endpoint))

        endpoint.request = self._creates.enter(decided)

    def _build(self, endpoint: Endpoint) -> None:
        endpoint.building = True

        def built() -> None:
            endpoint.building, endpoint.built = False, True
            self.permits.give_back()
            if endpoint.removal is not None:
                self._remove_now(endpoint)  # a delete has waited for the endpoint's lock since before we noticed
            if endpoint.gone:
                self._remove(endpoint, lambda: self._answered(endpoint, FAILED))
            else:
                self._answered(endpoint, OK)

        self.scrub(lambda: self.timeline.after(self.costs.load, built))

    def hang_up(self, endpoint: Endpoint) -> None:
        """The client of a PUT is gone. Work under way goes on; what waits for a permit is removed at once."""
        request = endpoint.request
        if request is None or endpoint.built:
            return
        endpoint.gone = True
        if self._creates.hang_up(request):
            self.busy -= 1
        elif endpoint.known and not endpoint.building:
            self._remove(endpoint, lambda: self._answered(endpoint, FAILED))

    def _answered(self, endpoint: Endpoint, code: int) -> None:
        self.busy -= 1
        if endpoint.request is not None and code != REFUSED:
            self._creates.leave(endpoint.request)
        endpoint.answer(code)

    # --- delete -----------------------------------------------------------------------------------------------

    def delete(self, endpoint: Endpoint, answer: Answered) -> Callable[[], bool]:
        """DELETE. Returns how its client hangs up: True when the request had not got past the limiter."""
        self.busy += 1
        holder: list[Request] = []

        def done(code: int) -> None:
            self.busy -= 1
            if holder:
                self._deletes.leave(holder[0])
            else:
                self.timeline.after(0, lambda: self._deletes.leave(holder[0]))
            answer(code)

        def decided(admitted: bool) -> None:
            if not admitted:
                self.busy -= 1
                answer(REFUSED)
            elif not endpoint.known:
                done(UNKNOWN)
            else:
                self._remove(endpoint, lambda: done(200))

        holder.append(self._deletes.enter(decided))

        def hang_up() -> bool:
            waited = self._deletes.hang_up(holder[0])
            self.busy -= waited
            return waited

        return hang_up

    def _remove(self, endpoint: Endpoint, then: Then) -> None:
        """A removal with a scrub of its own; who asks second waits for the first. One under regeneration is waited
        for; one that waits for its permit leaves that queue."""
        endpoint.known = False
        if endpoint.removed:
            then()
            return
        if endpoint.removal is not None:
            endpoint.removal.append(then)
            return
        endpoint.removal = [then]
        if endpoint.ticket is not None and not endpoint.building and not endpoint.built:
            self.permits.leave(endpoint.ticket)
        if not endpoint.building:
            self._remove_now(endpoint)

    def _remove_now(self, endpoint: Endpoint) -> None:
        def walked() -> None:
            endpoint.removed = True
            if endpoint.on_walked is not None:
                endpoint.on_walked()
            waiting, endpoint.removal = endpoint.removal or [], None
            for then in waiting:
                then()

        self.scrub(walked)
