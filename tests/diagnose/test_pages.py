"""status --verbose, metrics, conntrack -S and /proc/net/stat: values, several snapshots in one file, torn lines."""

from __future__ import annotations

import io

from bench import night
from loadgen.diagnose import goroutines, logs, pages
from loadgen.diagnose.streams import LINE_BYTES, Source, lines


def source(text: str | bytes) -> Source:
    return Source("f", io.BytesIO(text.encode() if isinstance(text, str) else text))


def test_status() -> None:
    status, problems = pages.status(source(night.status()))
    assert problems == []
    assert (status.ratio, status.version) == (0.005, "1.16.5")
    assert status.sizes["TCP connection tracking"] == 16_777_216
    assert status.sizes["Non-TCP connection tracking"] == 14_232_516


def test_status_without_maps_says_what_to_give() -> None:
    assert "--verbose" in pages.status(source("KVStore:  Ok\nBPF Maps:  dynamic sizing: off\n"))[1][0].what


def test_metrics_with_a_torn_line() -> None:
    text = night.metrics(7) + 'cilium_bpf_map_pressure{map_name="x\n' + 'cilium_other{a="b} 1\n'
    page, problems = pages.metrics(source(text))
    labels = (("family", "ipv4"), ("protocol", "TCP"), ("status", "completed"))
    assert page.samples["cilium_datapath_conntrack_gc_runs_total", labels] == 7
    assert [(p.where, p.what) for p in problems] == [(f"line {night.metrics(7).count(chr(10)) + 1}", "a torn sample")]


def test_conntrack_sums_cpus_and_splits_snapshots() -> None:
    found, problems = pages.conntrack(source(night.conntrack_stat(1, 2) + night.conntrack_stat(5, 9) + "what?\n"))
    assert [page.file for page in found] == ["f", "f (2)"]
    assert [(page.counters["insert_failed"], page.counters["drop"]) for page in found] == [(1, 2), (5, 9)]
    assert found[0].counters["clash_resolve"] == 22
    assert [problem.where for problem in problems] == ["line 5"]


def test_proc_net_stat_is_hexadecimal_and_by_name() -> None:
    text = "entries  clashres found new invalid chainlength insert_failed drop\n"
    text += "00000010  0000000a 0 0 0 00000001 00000011 00000002\n" * 2
    counters = pages.conntrack(source(text))[0][0].counters
    assert counters["clash_resolve"] == 20
    assert counters["insert_failed"] == 34
    assert counters["chaintoolong"] == 2
    assert "entries" not in counters


def test_lines_are_bounded_and_numbered() -> None:
    text = b"a\r\n" + b"x" * (3 << 20) + b"\nlast"
    found = [(number, len(line), cut) for number, line, cut in lines(source(text))]
    assert found == [(1, 1, False), (2, LINE_BYTES, True), (3, 4, False)]


def test_a_dump_in_the_middle_of_a_log() -> None:
    facts, dump, problems = logs.read(source(night.agent_log() + night.goroutines(5) + night.agent_log()))
    assert dump.total == 13
    assert facts.events["interval"].count == 26
    assert problems == []


def test_pprof_counts_its_stacks() -> None:
    reader = goroutines.GoroutineReader()
    text = (
        b"goroutine profile: total 58\n57 @ 0x43e1 0x44f2\n#\t0x43e1\tsync.(*Mutex).Lock+0x21\t/go/mutex.go:9\n"
        b"#\t0x44f2\tgithub.com/x/ctmap.doGC4+0x12\t/x.go:1\n\n1 @ 0x1\n#\t0x1\tmain.main+0x1\t/m.go:1\n"
    )
    for line in text.split(b"\n"):
        reader.line(line)
    dump = reader.dump("f")
    assert dump.total == 58
    assert dump.stacks[0].count == 57
    assert dump.stacks[0].frames == ("sync.(*Mutex).Lock", "github.com/x/ctmap.doGC4")


def test_frames_lose_their_arguments_and_keep_their_receivers() -> None:
    reader = goroutines.GoroutineReader()
    text = b"goroutine 7 gp=0xc0 m=nil [sync.Mutex.Lock, 12 minutes, locked to thread]:\n"
    for line in (text + b"sync.(*Mutex).Lock(...)\n\t/m.go:9\n").split(b"\n"):
        reader.line(line)
    (stack,) = reader.dump("f").stacks
    assert (stack.frames, stack.state, stack.minutes) == (("sync.(*Mutex).Lock",), "sync.Mutex.Lock", 12)
