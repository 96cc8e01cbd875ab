"""Who holds the CT lock, who waits for it, and who waits for something else."""

from __future__ import annotations

import pytest

from loadgen.core import gostacks
from loadgen.core.gostacks import Role
from loadgen.core.incident import Goroutines, Stack

CTMAP, ENDPOINT = "github.com/cilium/cilium/pkg/maps/ctmap.", "github.com/cilium/cilium/pkg/endpoint.(*Endpoint)."
SCRUB = (CTMAP + "GC", ENDPOINT + "garbageCollectConntrack", ENDPOINT + "scrubIPsInConntrackTableLocked")
WALK_1_18 = ("github.com/cilium/ebpf.(*Map).BatchLookup", "github.com/cilium/cilium/pkg/bpf.(*BatchIterator[...])")


@pytest.mark.parametrize(
    ("state", "frames", "role"),
    [
        (
            "syscall",
            ("bpf.(*Map).NextKey", "bpf.(*Map).DumpReliablyWithCallback", CTMAP + "doGC4", *SCRUB),
            Role.HOLDS,
        ),
        ("running", (*WALK_1_18, CTMAP + "iterate", CTMAP + "doGC4", *SCRUB), Role.HOLDS),
        (
            "sync.Mutex.Lock",
            ("sync.runtime_SemacquireMutex", "sync.(*Mutex).Lock", CTMAP + "doGC4", *SCRUB),
            Role.WAITS,
        ),
        ("semacquire", ("sync.runtime_SemacquireMutex", "lock.(*internalMutex).Lock", CTMAP + "doGC6"), Role.WAITS),
        ("sync.Mutex.Lock", ("internal/sync.runtime_SemacquireMutex", CTMAP + "doGC4"), Role.WAITS),
        ("select", (ENDPOINT + "WaitForFirstRegeneration", "daemon/cmd.(*putEndpointIDHandler).Handle"), Role.CREATE),
        ("select", ("rate.(*APILimiter).wait", "daemon/cmd.(*putEndpointIDHandler).Handle"), Role.LIMITED),
        ("select", ("daemon/cmd.(*Daemon).QueueEndpointBuild",), Role.PERMIT),
        ("sync.Mutex.Lock", ("sync.(*Mutex).Lock", "net/http.(*conn).serve"), Role.OTHER),
    ],
)
def test_roles(state: str, frames: tuple[str, ...], role: Role) -> None:
    assert gostacks.role(Stack(1, state, frames)) is role


def test_roles_are_counted_over_all_stacks() -> None:
    wait = Stack(56, "sync.Mutex.Lock", ("sync.(*Mutex).Lock", CTMAP + "doGC4"), minutes=2)
    again = Stack(3, "sync.Mutex.Lock", ("sync.(*Mutex).Lock", CTMAP + "doGC6"), minutes=7)
    hold = Stack(1, "syscall", (CTMAP + "doGC4",), minutes=99)
    found = gostacks.roles(Goroutines("f", 60, (wait, again, hold)))
    assert (found.holds, found.waits, found.minutes) == (1, 59, 7)
