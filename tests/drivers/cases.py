"""What the resolvers are held to: faults of a server, and the settings that are said to help, by real resolver."""

from __future__ import annotations

from typing import Literal

import msgspec

from loadgen.core.model import StubName
from tests.realresolvers import musl_stub
from tests.scripted import Act

NAMES = ("one.example.", "two.example.", "three.example.")
POD = ("default.svc.cluster.local", "svc.cluster.local", "cluster.local")
NODE = (*POD, "node.example")
EXTERNAL = "www.example.com"
RACE = (Act("race"),)
SERVFAIL, REFUSED = (Act("SERVFAIL"),), (Act("REFUSED"),)
LATE_S = 1.4
"""Later than the timeout of a second, and so after the second sending."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`times` lookups by one process. `every_s` is more than a lookup of ours takes."""

    runtime: str = "glibc"
    stub: StubName = "glibc-2.36"
    via: Literal["wire", "fast"] = "wire"
    script: tuple[Act, ...] = ()
    options: str = "timeout:1"
    search: tuple[str, ...] = ()
    name: str = ""
    """Instead of NAMES, looked up once."""
    times: int = 1
    every_s: float = 3.5
    by_type: bool = False
    tolerance_s: float = 0.35
    overhead_s: float = 0.5
    """What a runtime may need for itself around a lookup."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if self.name else NAMES[: self.times]

    @property
    def exist(self) -> tuple[str, ...]:
        return (*NAMES, EXTERNAL + ".")


COMMON = {
    "all fine": Case(every_s=0.5),
    "the second lost": Case(script=(Act("drop", "AAAA", 1),)),
    "the first lost": Case(script=(Act("drop", "A", 1),)),
    "both lost": Case(script=(Act("drop", "A", 1), Act("drop", "AAAA", 1))),
    "nothing answered": Case(script=(Act("drop"),)),
    "the race": Case(script=RACE, times=3),
    "SERVFAIL": Case(script=SERVFAIL),
    "SERVFAIL for A": Case(script=(Act("SERVFAIL", "A"),)),
    "SERVFAIL for AAAA": Case(script=(Act("SERVFAIL", "AAAA"),)),
    "REFUSED": Case(script=REFUSED),
    "NOTIMP": Case(script=(Act("NOTIMP"),)),
    "FORMERR once": Case(script=(Act("FORMERR", "A", 1), Act("FORMERR", "AAAA", 1))),
    "NXDOMAIN": Case(name="no-such.example."),
    "no data": Case(script=(Act("nodata"),)),
    "no AAAA data": Case(script=(Act("nodata", "AAAA"),)),
    "lame": Case(script=(Act("lame"),)),
    "truncated": Case(script=(Act("truncate"),)),
    "AAAA truncated": Case(script=(Act("truncate", "AAAA"),)),
    "late": Case(script=(Act("late", late_s=0.5),)),
    "later than the timeout": Case(script=(Act("late", late_s=LATE_S),)),
    "duplicated": Case(script=(Act("twice"),)),
    "wrong id": Case(script=(Act("wrong id", "A", 1),)),
    "wrong question": Case(script=(Act("wrong question", "A", 1),)),
    "garbage": Case(script=(Act("garbage", "A", 1),)),
    "short REFUSED": Case(script=(Act("short REFUSED"),)),
    "search list": Case(options="ndots:5 timeout:1", search=NODE, name=EXTERNAL),
    "search list, no such name": Case(options="ndots:5 timeout:1", search=NODE, name="no-such.example"),
    "search list, the race": Case(options="ndots:5 timeout:1", search=NODE, name=EXTERNAL, script=RACE, every_s=12),
    "SERVFAIL in the list": Case(
        options="ndots:5 timeout:1",
        search=POD,
        name=EXTERNAL,
        script=(Act("SERVFAIL", name=f"{EXTERNAL}.{POD[0]}."),),
    ),
    "ndots reached": Case(options="ndots:2 timeout:1", search=POD, name=EXTERNAL),
    "dot at the end": Case(options="ndots:5 timeout:1", search=NODE, name=EXTERNAL + "."),
}
GLIBC = {
    "AAAA never": Case(script=(Act("drop", "AAAA"),), times=2, every_s=4.5),
    "A never": Case(script=(Act("drop", "A"),), every_s=4.5),
    "AAAA lost twice": Case(script=(Act("drop", "AAAA", 2),), times=2),
    "timeout:1 attempts:3": Case(script=RACE, options="timeout:1 attempts:3", times=3),
    "single-request": Case(script=RACE, options="timeout:1 single-request", times=2),
    "single-request-reopen": Case(script=RACE, options="timeout:1 single-request-reopen", times=2),
    "use-vc": Case(script=RACE, options="timeout:1 use-vc", times=2),
    "use-vc, reset": Case(script=(Act("reset", times=1),), options="timeout:1 use-vc"),
    "no-aaaa": Case(script=RACE, options="timeout:1 no-aaaa", times=2),
    "edns0 trust-ad": Case(options="timeout:1 edns0 trust-ad"),
    "SERVFAIL, single-request": Case(script=(Act("SERVFAIL", "A"),), options="timeout:1 single-request"),
    "five seconds": Case(script=RACE, options="", every_s=6.5),
}
MUSL = {
    "options that musl ignores": Case(
        script=RACE, options="timeout:2 single-request-reopen use-vc no-aaaa rotate", times=2
    ),
    "AAAA never": Case(script=(Act("drop", "AAAA"),)),
    "two and a half seconds": Case(script=RACE, options="", every_s=4.0),
}
GO = {
    "single-request": Case(options="timeout:1 single-request", times=2),
    "use-vc": Case(options="timeout:1 use-vc", times=2),
    "AAAA never": Case(script=(Act("drop", "AAAA"),)),
    "trust-ad": Case(options="timeout:1 trust-ad"),
}
# Answers that come at once are read at once, or not, which changes what c-ares does: here one comes well before.
CARES = {
    "SERVFAIL for A": Case(script=(Act("SERVFAIL", "A"), Act("late", "AAAA", late_s=0.6))),
    "SERVFAIL for AAAA": Case(script=(Act("SERVFAIL", "AAAA"), Act("late", "A", late_s=0.6))),
    "nothing answered": Case(script=(Act("drop"),), options="timeout:1 attempts:2", by_type=True, tolerance_s=1.2),
    "AAAA never": Case(script=(Act("drop", "AAAA"),)),
    "use-vc": Case(options="timeout:1 use-vc"),
    "rotate": Case(options="timeout:1 rotate"),
}
RACE_ONLY = ("all fine", "the race", "nothing answered", "SERVFAIL", "NXDOMAIN", "search list")


def _for(runtime: str, cases: dict[str, Case], **changes: object) -> dict[str, Case]:
    return {f"{runtime}: {name}": msgspec.structs.replace(c, runtime=runtime, **changes) for name, c in cases.items()}


def _musl(case: Case) -> Case:
    """musl asks again after half its timeout."""
    return msgspec.structs.replace(case, options=case.options.replace("timeout:1", "timeout:2"), every_s=case.every_s)


_MUSL = {name: _musl(case) for name, case in {**COMMON, **MUSL}.items()}
_BY_LIBC = {name: COMMON[name] for name in RACE_ONLY}
# Which of two that time out in one millisecond c-ares asks again first, its list of timeouts decides.
_BOTH_AGAIN = {
    name: msgspec.structs.replace(COMMON[name], by_type=True) for name in ("both lost", "later than the timeout")
}
_RESOLVE = {name: case for name, case in {**COMMON, **_BOTH_AGAIN}.items() if not case.search}
# Of the third sending on, c-ares shortens each wait by up to a half, at random.
_RESOLVE["nothing answered"] = Case(script=(Act("drop", "A", 2), Act("drop", "AAAA", 2)), by_type=True)


def _fast(cases: dict[str, Case]) -> dict[str, Case]:
    """What the C loop does: names as they stand, and nothing by TCP."""
    plain = {n: c for n, c in cases.items() if not c.search and "use-vc" not in c.options and "truncated" not in n}
    return {f"{name}, in C": msgspec.structs.replace(case, via="fast") for name, case in plain.items()}


_WITHOUT_JITTER = {n: c for n, c in {**COMMON, **_BOTH_AGAIN}.items() if n != "later than the timeout"}

CASES: dict[str, Case] = {
    **_for("glibc", {**COMMON, **GLIBC}),
    **_for("musl", _MUSL, stub=musl_stub()),
    **_for("glibc", _fast({**COMMON, **GLIBC})),
    **_for("musl", _fast({n: c for n, c in _MUSL.items() if n != "options that musl ignores"}), stub=musl_stub()),
    **_for("go", {**COMMON, **GO}, stub="go", by_type=True),
    **_for("node", _BY_LIBC, stub="node", overhead_s=1.0),
    **_for("c-ares", {**_WITHOUT_JITTER, **CARES}, stub="c-ares"),
    **_for("node-resolve", {**_RESOLVE, "use-vc": CARES["use-vc"]}, stub="node-resolve"),
    **_for("java", {"all fine": COMMON["all fine"], "the race": COMMON["the race"]}, stub="java", overhead_s=1.5),
    **_for("java without its cache", _BY_LIBC, stub="glibc-2.36", overhead_s=1.5),
}
