"""Logs of the agent, the kubelet, the container runtime and the kernel; a SIGQUIT dump in the middle of one, too."""

from __future__ import annotations

from loadgen.core.incident import Goroutines, LogFacts, Problem
from loadgen.core.loglines import LogReader
from loadgen.diagnose.goroutines import GoroutineReader
from loadgen.diagnose.streams import LINE_BYTES, Source, lines


def read(source: Source, origin: str = "") -> tuple[LogFacts, Goroutines, list[Problem]]:
    """The events of a log, and the goroutines of a dump in it (none: total 0)."""
    log, dump = LogReader(origin), GoroutineReader()
    problems: list[Problem] = []
    for number, line, cut in lines(source):
        log.line(number, line)
        dump.line(line)
        if cut and not problems:
            problems.append(
                Problem(source.name, f"line {number}", f"longer than {LINE_BYTES} bytes; its end was not read")
            )
    return log.facts(source.name), dump.dump(source.name), problems
