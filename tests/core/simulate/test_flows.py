"""The closed forms of a table against a table that keeps every entry."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core.simulate.flows import Flow, Table, bends
from loadgen.core.units import NS_PER_S


class Counted:
    """Keeps each entry's expiry; one entry every 1/rate seconds, counted at whole instants."""

    def __init__(self, flows: list[tuple[int, int, int, int]]) -> None:
        self.expiries = deque(
            sorted(
                (start + i / rate, start + i / rate + ttl)
                for rate, ttl, start, end in flows
                for i in range((end - start) * rate)
            )
        )

    def counts(self, t: float, passed: float) -> tuple[int, int]:
        there = [e for came, e in self.expiries if came < t and e >= passed]
        return len(there), sum(e < t for e in there)


flow_lists = st.lists(
    st.tuples(st.integers(1, 20), st.integers(1, 60), st.integers(0, 30), st.integers(31, 90)), min_size=1, max_size=3
)


@given(flow_lists, st.integers(0, 60), st.integers(0, 60))
def test_entries_and_garbage_are_those_of_a_table_that_counts(
    flows: list[tuple[int, int, int, int]], passed: int, more: int
) -> None:
    table = Table(1 << 20, 0)
    table.flows = [Flow(rate, ttl * NS_PER_S, start * NS_PER_S, end * NS_PER_S) for rate, ttl, start, end in flows]
    table.collect(passed * NS_PER_S)
    entries, expired = table.counts((passed + more) * NS_PER_S)
    counted = Counted(flows).counts(passed + more, passed)
    # Fluid against whole entries: off by less than one for each flow and end.
    assert abs(entries - counted[0]) <= 2 * len(flows)
    assert abs(expired - counted[1]) <= 2 * len(flows)


def test_full_table_evicts_what_has_expired_first() -> None:
    table = Table(1000, 0)
    table.flows = [Flow(10.0, 50 * NS_PER_S, 0, 10_000 * NS_PER_S)]
    assert table.counts(100 * NS_PER_S) == (1000.0, 500.0)
    assert table.counts(140 * NS_PER_S) == (1000.0, 500.0)  # 1400 came, 500 live, the other 500 have expired
    assert table.evicted_live == 0.0


def test_table_too_small_for_what_lives() -> None:
    table = Table(1000, 0)
    table.flows = [Flow(30.0, 50 * NS_PER_S, 0, 10_000 * NS_PER_S)]
    assert table.counts(100 * NS_PER_S) == (1000.0, 0.0)
    assert table.evicted_live == pytest.approx(500.0)


def test_scrub_takes_a_workloads_entries_and_no_others() -> None:
    table = Table(1 << 20, 0)
    mine, other = (Flow(10.0, 10 * NS_PER_S, 0, 100 * NS_PER_S) for _ in range(2))
    table.flows = [mine, other]
    table.drop([mine])
    assert table.entries(50 * NS_PER_S) == 500.0


def test_bends_are_where_entries_or_garbage_change_their_course() -> None:
    flow = Flow(1.0, 10, 5, 100)
    assert sorted(bends([flow])) == [5, 15, 100, 110]
