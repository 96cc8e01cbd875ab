"""Small text files: `cilium status --verbose`, metrics pages, `conntrack -S` and /proc/net/stat/nf_conntrack."""

from __future__ import annotations

import re

from loadgen.core import promtext
from loadgen.core.incident import Conntrack, MetricsPage, Problem, Status
from loadgen.diagnose.streams import Source, lines

WANTED = frozenset(
    {
        "cilium_datapath_conntrack_gc_runs_total",
        "cilium_datapath_conntrack_gc_entries",
        "cilium_datapath_conntrack_gc_interval_seconds",
        "cilium_bpf_map_pressure",
        "cilium_drop_count_total",
        "cilium_api_limiter_processed_requests_total",
        "cilium_api_limiter_adjustment_factor",
        "process_start_time_seconds",
    }
)
PROBLEMS_MAX = 16
_RATIO = re.compile(r"ratio: ([0-9.]{1,20})\)")
_ROW = re.compile(r"\s{2,}(\S.*?)\s{2,}(\d{1,12})\s*")
_VERSION = re.compile(r"Cilium:\s+\S+\s+v?(\d+\.\d+[^\s(]*)")
_CPU = re.compile(r"cpu=(\d+)\s")
_COUNTER = re.compile(r"(\w+)=(\d{1,20})(?!\w)")
_RENAMED = {"clashres": "clash_resolve", "chainlength": "chaintoolong"}


def status(source: Source) -> tuple[Status, list[Problem]]:
    ratio: float | None = None
    sizes: dict[str, int] = {}
    version, inside = "", False
    for _, raw, _ in lines(source):
        line = raw.decode("utf-8", "replace")
        if found := _VERSION.match(line):
            version = found[1]
        if line.startswith("BPF Maps:"):
            inside, found = True, _RATIO.search(line)
            ratio = _float(found[1]) if found else None
        elif inside and (row := _ROW.fullmatch(line)) and len(sizes) < 256:
            sizes[row[1]] = int(row[2])
        elif inside and line[:1].strip():
            inside = False
    problems = [] if sizes else [Problem(source.name, "", "no table of BPF maps: give `cilium status --verbose`")]
    return Status(source.name, ratio, sizes, version), problems


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def metrics(source: Source) -> tuple[MetricsPage, list[Problem]]:
    """The samples that bear on conntrack; a line of theirs that is torn is a problem, not the end."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    problems: list[Problem] = []
    for number, raw, _ in lines(source):
        if not raw.lstrip().startswith((b"cilium_", b"process_start")):
            continue
        try:
            for sample in promtext.samples(raw.decode("utf-8", "replace"), WANTED):
                found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
        except ValueError:
            if len(problems) < PROBLEMS_MAX:
                problems.append(Problem(source.name, f"line {number}", "a torn sample"))
    return MetricsPage(source.name, found), problems


def conntrack(source: Source) -> tuple[list[Conntrack], list[Problem]]:
    """One value a snapshot: a CPU that comes again begins the next."""
    snapshots: list[dict[str, int]] = [{}]
    seen: set[int] = set()
    problems: list[Problem] = []
    columns: list[str] = []
    for number, raw, _ in lines(source):
        line = raw.decode("utf-8", "replace").strip()
        if cpu := _CPU.match(line + " "):
            if int(cpu[1]) in seen:
                snapshots.append({})
                seen.clear()
            seen.add(int(cpu[1]))
            pairs = [(name, int(value)) for name, value in _COUNTER.findall(line) if name != "cpu"]
        elif line.startswith("entries "):
            if columns:
                snapshots.append({})
            columns, pairs = line.split(), []
        elif columns and len(values := line.split()) == len(columns):
            pairs = [(name, value) for name, text in zip(columns, values, strict=True) if (value := _hex(text)) >= 0]
        else:
            pairs = []
            if line and not line.startswith(("#", "`")) and len(problems) < PROBLEMS_MAX:
                problems.append(Problem(source.name, f"line {number}", "not counters of a CPU"))
        for name, value in pairs:
            if name != "entries":  # the total, on every line
                name = _RENAMED.get(name, name)
                snapshots[-1][name] = snapshots[-1].get(name, 0) + value
    names = [source.name] + [f"{source.name} ({i})" for i in range(2, len(snapshots) + 1)]
    archived = source.name if source.is_member else ""
    return [Conntrack(name, counters, archived) for name, counters in zip(names, snapshots, strict=True)], problems


def _hex(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return -1
