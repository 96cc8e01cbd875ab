"""Goroutines of a Cilium agent, by what they do to the conntrack table: who walks it, who waits for its lock.

Function names of 1.14 to 1.20: scrubs and GC passes go through ctmap's doGC4/doGC6 (one lock a table, taken inside);
a create waits in WaitForFirstRegeneration for the scrub of its endpoint.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from loadgen.core.incident import Goroutines, Stack


class Role(Enum):
    HOLDS = "walks the CT table, holding its lock"
    WAITS = "waits for the CT table's lock"
    CREATE = "a create that waits for its endpoint's first regeneration"
    LIMITED = "waits in the API limiter"
    PERMIT = "waits for a build permit"
    OTHER = "other"


_WALK = ("doGC4", "doGC6", "scrubIPsInConntrackTable", "garbageCollectConntrack")
_IN_LOCK = (
    "sync.runtime_Semacquire",
    "sync.(*Mutex).",
    "sync.(*RWMutex).",
    "internal/sync.",
    "lock.(*internal",
    "lockSlow",
)


class Roles(msgspec.Struct, frozen=True):
    """Goroutines by role, and the longest wait for the lock that the runtime noted, in minutes."""

    holds: int
    waits: int
    creates: int
    limited: int
    permits: int
    minutes: int


def role(stack: Stack) -> Role:
    """What the goroutines at this stack do. A stack inside doGC whose innermost frames are a mutex waits for it."""
    where = next((i for i, f in enumerate(stack.frames) if any(w in f for w in _WALK)), None)
    if where is not None:
        inner = stack.frames[:where]
        locked = any(any(m in f for m in _IN_LOCK) for f in inner) or "Mutex" in stack.state
        return Role.WAITS if locked or (stack.state == "semacquire") else Role.HOLDS
    joined = " ".join(stack.frames)
    if "WaitForFirstRegeneration" in joined:
        return Role.CREATE
    if "rate.(*APILimiter)" in joined:
        return Role.LIMITED
    if "buildqueue" in joined or "QueueEndpointBuild" in joined:
        return Role.PERMIT
    return Role.OTHER


def roles(dump: Goroutines) -> Roles:
    """How many goroutines of `dump` stand where."""
    by = [(role(stack), stack) for stack in dump.stacks]

    def count(wanted: Role) -> int:
        return sum(stack.count for found, stack in by if found is wanted)

    return Roles(
        holds=count(Role.HOLDS),
        waits=count(Role.WAITS),
        creates=count(Role.CREATE),
        limited=count(Role.LIMITED),
        permits=count(Role.PERMIT),
        minutes=max((s.minutes for found, s in by if found is Role.WAITS), default=0),
    )
