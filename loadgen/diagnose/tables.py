"""`cilium-dbg bpf ct list`, text or JSON of any version, at the speed of the disk."""

from __future__ import annotations

from loadgen.core import ctlist
from loadgen.core.ctlist import CtTable
from loadgen.core.incident import Problem
from loadgen.diagnose.streams import Source
from loadgen.native import CtList

TOP = 10


def read(source: Source, *, json: bool) -> tuple[CtTable, list[Problem]]:
    """Count the entries of a list; entries that cannot be read are problems by line (text) or offset (JSON)."""
    reader = CtList(json=json)
    for chunk in source.chunks():
        reader.feed(chunk)
    reader.finish()
    counts = reader.counts
    unit = "offset" if json else "line"
    problems = [Problem(source.name, f"{unit} {at}", what) for at, what in reader.complaints]
    if counts["bad"] > len(problems):
        problems.append(Problem(source.name, "", f"{counts['bad'] - len(problems)} more entries could not be read"))
    if counts["uncounted"]:
        what = f"more addresses or times than there is room for: {counts['uncounted']} counts left out"
        problems.append(Problem(source.name, "", what))
    table = CtTable(
        file=source.name,
        entries=counts["entries"],
        bad=counts["bad"],
        uncounted=counts["uncounted"],
        states=reader.states,
        sources=ctlist.addresses(reader.sources, TOP),
        destinations=ctlist.addresses(reader.destinations, TOP),
        ports=ctlist.ports(reader.ports, TOP),
        last_report=counts["last_report"],
        now=counts["now"] if counts["now"] >= 0 else None,
    )
    return table, problems
