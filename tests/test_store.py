from pathlib import Path

import numpy as np
import pytest

from loadgen import store
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.history import RUN_FORMAT, Ending, RunInfo
from loadgen.core.samples import SAMPLE_DTYPE, Mark, Reading, SampleBatch, Span, Tally

INFO = RunInfo(
    format=RUN_FORMAT,
    scenario={"name": "x"},
    variant="before",
    baseline=True,
    partial=False,
    repeat=0,
    seed=7,
    testbed="fake",
    environment={"kernel": "6"},
    emulated=("all",),
    argv=("loadgen",),
    started="2026-01-01T00:00:00+00:00",
    start_ns=5,
)
EXPERIMENT = store.ExperimentInfo(RUN_FORMAT, "experiment", {"name": "x"}, ("01-before",), 7, "fake", (), "now")


def batch(metric: str, first: int, details: tuple[str, ...] = ("", "timeout"), refs: bool = False) -> SampleBatch:
    rows = np.zeros(3, dtype=SAMPLE_DTYPE)
    rows["seq"] = range(first, first + 3)
    rows["due_ns"] = rows["seq"] * 10
    rows["detail"] = [0, 1, 0]
    names = tuple(f"c{i}" for i in rows["seq"]) if refs else ()
    return SampleBatch(metric, f"phase{first}", f"src{first}", rows.tobytes(), details, names)


def test_a_closed_run_reads_back_what_was_written(tmp_path: Path) -> None:
    writer = store.RunWriter(tmp_path / "r", INFO)
    writer.add(batch("dns.lookup", 0))
    writer.add(Reading(1, "ct.tcp.entries", 5.0))
    writer.flush()
    writer.add(batch("dns.lookup", 3, ("", "EAI_AGAIN")))
    writer.add(batch("sandbox.setup", 0, refs=True))
    writer.add(Reading(2, "ct.tcp.entries", 6.0))
    writer.add(Reading(2, "agent.gc.interval", 60.0))
    writer.add(Span("gc", "1", "walk tcp", 3, 9, n=100, deleted=7))
    writer.add(Tally("phase0", "src0", {"dns.lookup": 3}, 0.1, 1.0))
    writer.add(Mark(4, "phase", "phase0"))
    writer.close(Ending.COMPLETE, 99)

    assert sorted(p.name for p in (tmp_path / "r" / "samples").iterdir()) == [
        "dns.lookup.parquet",
        "sandbox.setup.parquet",
    ]
    data = store.read_run(tmp_path / "r")
    assert data.info == INFO
    lookups = data.samples["dns.lookup"]
    assert lookups.rows["seq"].tolist() == [0, 1, 2, 3, 4, 5]
    assert [lookups.details[i] for i in lookups.rows["detail"]] == ["", "timeout", "", "", "EAI_AGAIN", ""]
    assert [lookups.phases[i] for i in lookups.phase] == ["phase0"] * 3 + ["phase3"] * 3
    assert [lookups.sources[i] for i in lookups.source] == ["src0"] * 3 + ["src3"] * 3
    assert lookups.refs == ()
    assert data.samples["sandbox.setup"].refs == ("c0", "c1", "c2")
    assert data.readings["ct.tcp.entries"].values.tolist() == [5.0, 6.0]
    assert data.readings["agent.gc.interval"].t_ns.tolist() == [2]
    assert data.spans == (Span("gc", "1", "walk tcp", 3, 9, n=100, deleted=7),)
    assert data.tallies == (Tally("phase0", "src0", {"dns.lookup": 3}, 0.1, 1.0),)
    assert data.ending() is Ending.COMPLETE


def test_a_killed_run_keeps_what_was_flushed(tmp_path: Path) -> None:
    writer = store.RunWriter(tmp_path / "r", INFO)
    writer.add(batch("dns.lookup", 0))
    writer.add(Mark(4, "phase", "phase0"))
    writer.flush()
    writer.add(batch("dns.lookup", 3))
    # What a kill in the middle of two writes leaves behind.
    (tmp_path / "r" / "samples" / "dns.lookup-00002.parquet.part").write_bytes(b"PAR1 half")
    with (tmp_path / "r" / "marks.jsonl").open("ab") as marks:
        marks.write(b'{"type":"mark","t_ns":5,"ki')
    data = store.read_run(tmp_path / "r")
    assert data.samples["dns.lookup"].rows["seq"].tolist() == [0, 1, 2]
    assert data.ending() is Ending.KILLED
    assert [m.name for m in data.marks] == ["phase0"]


def test_a_kill_between_join_and_removal_doubles_nothing(tmp_path: Path) -> None:
    writer = store.RunWriter(tmp_path / "r", INFO)
    writer.add(batch("dns.lookup", 0))
    writer.close(Ending.COMPLETE, 1)
    whole = tmp_path / "r" / "samples" / "dns.lookup.parquet"
    (whole.parent / "dns.lookup-00001.parquet").write_bytes(whole.read_bytes())
    assert len(store.read_run(tmp_path / "r").samples["dns.lookup"].rows) == 3


def test_many_rows_are_flushed_without_being_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FLUSH_ROWS", 6)
    writer = store.RunWriter(tmp_path / "r", INFO)
    for first in range(0, 30, 3):
        writer.add(batch("dns.lookup", first))
    assert len(list((tmp_path / "r" / "samples").glob("*.parquet"))) == 5
    writer.close(Ending.COMPLETE, 1)
    assert store.read_run(tmp_path / "r").samples["dns.lookup"].rows["seq"].tolist() == list(range(30))


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    store.create(tmp_path / "out", EXPERIMENT)
    assert store.read_experiment(tmp_path / "out") == EXPERIMENT
    with pytest.raises(ConfigError, match="already holds a run"):
        store.create(tmp_path / "out", EXPERIMENT)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").touch()
    with pytest.raises(ConfigError, match="not empty"):
        store.create(tmp_path / "other", EXPERIMENT)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="not writable"):
        store.create(tmp_path / "file" / "out", EXPERIMENT)


def test_a_full_disk_is_the_harness_and_not_a_traceback() -> None:
    with (
        pytest.raises(HarnessError, match="the disk is full"),
        store.writing(Path("/dev/full")),
        open("/dev/full", "wb", buffering=0) as full,
    ):
        full.write(b"x")


@pytest.mark.parametrize("content", [None, b"{", b"{}", b'{"format": 99}'])
def test_what_is_no_run_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.json|no run here"):
        store.read_run(tmp_path)


def test_another_format_is_named(tmp_path: Path) -> None:
    import msgspec

    store.write_json(tmp_path / "run.json", msgspec.structs.replace(INFO, format=99))
    with pytest.raises(ConfigError, match="format 99; this loadgen reads format 1"):
        store.read_run(tmp_path)


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    writer = store.RunWriter(tmp_path / "r", INFO)
    writer.add(batch("dns.lookup", 0))
    writer.close(Ending.COMPLETE, 1)
    (tmp_path / "r" / "samples" / "dns.lookup.parquet").write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match=r"dns\.lookup"):
        store.read_run(tmp_path / "r")
