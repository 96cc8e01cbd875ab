"""The run directory: written before the first packet, appended as things happen, read back by `analyze`.

    OUT/run.json            what was asked for and where it ran (experiment)
    OUT/runs/01-before/     one run of one variant
        run.json            RunInfo
        samples/*.parquet   one file a metric; while it runs, numbered parts, each complete in itself
        readings.parquet  spans.parquet  marks.jsonl  logs/
    OUT/summary.json  verdict.json  report.html  junit.xml

A killed run keeps every part that was flushed: readers take `METRIC.parquet` where it exists, else the parts.
"""

from __future__ import annotations

import errno
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.history import RUN_FORMAT, Ending, MetricSamples, RunData, RunInfo, Series
from loadgen.core.samples import SAMPLE_DTYPE, Mark, Message, Reading, SampleBatch, Span, Tally

FLUSH_ROWS = 200_000
T = TypeVar("T")
_PART = re.compile(r"(?P<stem>.+?)(?:-(?P<part>\d{5}))?\.parquet")

_SAMPLE_SCHEMA = pa.schema(
    [(name, pa.from_numpy_dtype(SAMPLE_DTYPE[name])) for name in SAMPLE_DTYPE.names or () if name != "detail"]
    + [(name, pa.dictionary(pa.int32(), pa.string())) for name in ("detail", "phase", "source")]
    + [("ref", pa.string())],
    metadata={"loadgen.format": str(RUN_FORMAT)},
)
_READING_SCHEMA = pa.schema(
    [("t_ns", pa.int64()), ("series", pa.dictionary(pa.int32(), pa.string())), ("value", pa.float64())],
    metadata={"loadgen.format": str(RUN_FORMAT)},
)
_SPAN_SCHEMA = pa.schema(
    [("op", pa.string()), ("ref", pa.string()), ("stage", pa.string())]
    + [(name, pa.int64()) for name in ("start_ns", "end_ns", "n", "deleted")]
    + [("outcome", pa.string())],
    metadata={"loadgen.format": str(RUN_FORMAT)},
)


class ExperimentInfo(msgspec.Struct, frozen=True):
    """OUT/run.json."""

    format: int
    kind: str
    scenario: dict[str, Any]
    order: tuple[str, ...]
    """Directory names below runs/, in the order in which they are made."""
    seed: int
    testbed: str
    argv: tuple[str, ...]
    started: str


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A disk that is full or gone breaks the harness, not the target."""
    try:
        yield
    except OSError as error:
        why = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        raise HarnessError(f"cannot write {path}: {why}") from error


def create(out: Path, info: msgspec.Struct) -> None:
    """Make OUT and write its run.json. ConfigError when it holds something already or cannot be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            what = "already holds a run" if (out / "run.json").exists() else "is not empty"
            raise ConfigError(f"--out {out}: the directory {what}; name one that does not exist yet")
        write_json(out / "run.json", info)
    except (OSError, HarnessError) as error:
        raise ConfigError(f"--out {out}: not writable: {error}") from None


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON, all or nothing."""
    write_text(path, to_json(value))


def to_json(value: object) -> str:
    """`value` as indented JSON, with a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def write_text(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    with writing(path):
        part.write_text(text)
        part.replace(path)


class RunWriter:
    """History port: buffers messages, writes Parquet parts on `flush`, one whole file a table on `close`."""

    def __init__(self, path: Path, info: RunInfo) -> None:
        self.path = path
        with writing(path):
            (path / "samples").mkdir(parents=True, exist_ok=True)
            write_json(path / "run.json", info)
            self._marks = (path / "marks.jsonl").open("ab", buffering=0)
        self._batches: dict[str, list[SampleBatch]] = defaultdict(list)
        self._rows = 0
        self._readings: list[Reading] = []
        self._spans: list[Span] = []
        self._parts: dict[Path, int] = defaultdict(int)

    def add(self, message: Message) -> None:
        match message:
            case SampleBatch():
                self._batches[message.metric].append(message)
                self._rows += len(message.rows) // SAMPLE_DTYPE.itemsize
                if self._rows >= FLUSH_ROWS:
                    self.flush()
            case Reading():
                self._readings.append(message)
            case Span():
                self._spans.append(message)
            case Mark() | Tally():
                self._line(message)
            case _:
                raise TypeError(f"{type(message).__name__} does not belong in a history")

    def _line(self, value: Mark | Tally) -> None:
        with writing(self.path / "marks.jsonl"):
            self._marks.write(msgspec.json.encode(value) + b"\n")

    def flush(self) -> None:
        """Write what is buffered as complete Parquet parts. What was taken up once is never written twice."""
        batches, self._batches = self._batches, defaultdict(list)
        readings, self._readings = self._readings, []
        spans, self._spans = self._spans, []
        self._rows = 0
        for metric, some in batches.items():
            self._part(self.path / "samples" / metric, _sample_table(some))
        if readings:
            self._part(self.path / "readings", _record_table(readings, _READING_SCHEMA))
        if spans:
            self._part(self.path / "spans", _record_table(spans, _SPAN_SCHEMA))

    def _part(self, stem: Path, table: pa.Table) -> None:
        self._parts[stem] += 1
        target = stem.with_name(f"{stem.name}-{self._parts[stem]:05d}.parquet")
        with writing(target):
            pq.write_table(table, f"{target}.part")
            os.replace(f"{target}.part", target)

    def close(self, ending: Ending, t_ns: int) -> None:
        """Flush, note how the run ended, and join each table's parts into one file."""
        self.flush()
        self._line(Mark(t_ns, "end", ending.value))
        self._marks.close()
        for stem in self._parts:
            with writing(stem):
                _join_parts(stem)


def _join_parts(stem: Path) -> None:
    """Parts become STEM.parquet, row group by row group; the parts go only when the whole file is in place."""
    parts = sorted(stem.parent.glob(f"{stem.name}-[0-9]*.parquet"))
    target = stem.with_name(f"{stem.name}.parquet")
    with pq.ParquetWriter(f"{target}.part", pq.read_schema(parts[0])) as writer:
        for part in parts:
            writer.write_table(pq.read_table(part))
    os.replace(f"{target}.part", target)
    for part in parts:
        part.unlink()


def _sample_table(batches: list[SampleBatch]) -> pa.Table:
    return pa.concat_tables([_batch_table(batch) for batch in batches]).unify_dictionaries().combine_chunks()


def _batch_table(batch: SampleBatch) -> pa.Table:
    rows = batch.array()
    n = len(rows)
    zeros = np.zeros(n, dtype=np.int32)
    columns = [pa.array(rows[name]) for name in SAMPLE_DTYPE.names or () if name != "detail"]
    columns += [
        pa.DictionaryArray.from_arrays(pa.array(rows["detail"].astype(np.int32)), pa.array(batch.details)),
        pa.DictionaryArray.from_arrays(pa.array(zeros), pa.array([batch.phase])),
        pa.DictionaryArray.from_arrays(pa.array(zeros), pa.array([batch.source])),
        pa.array(batch.refs, pa.string()) if batch.refs else pa.nulls(n, pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=_SAMPLE_SCHEMA)


def _record_table(records: list[Any], schema: pa.Schema) -> pa.Table:
    columns = [pa.array([getattr(r, field.name) for r in records]).cast(field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


# --- reading back ---------------------------------------------------------------------------------------------


def read_experiment(out: Path) -> ExperimentInfo:
    return _read_json(out / "run.json", ExperimentInfo)


def read_run(path: Path) -> RunData:
    """Everything a run left, however it ended. ConfigError when `path` is no run or of another format."""
    info = _read_json(path / "run.json", RunInfo)
    samples = {metric: _read_samples(path / "samples", metric) for metric in _stems(path / "samples")}
    marks, tallies = _read_marks(path / "marks.jsonl")
    return RunData(info, samples, _read_readings(path), _read_spans(path), marks, tallies)


def _read_json(path: Path, kind: type[T]) -> T:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise ConfigError(f"{path.parent}: no run here: {path.name} is missing") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: not readable as a run: {error}") from None
    version = getattr(found, "format", None)
    if version != RUN_FORMAT:
        raise ConfigError(f"{path}: format {version}; this loadgen reads format {RUN_FORMAT}")
    return found


def _stems(folder: Path) -> list[str]:
    matches = (_PART.fullmatch(p.name) for p in sorted(folder.glob("*.parquet")))
    return sorted({m["stem"] for m in matches if m})


def _read_table(folder: Path, stem: str) -> pa.Table | None:
    whole = folder / f"{stem}.parquet"
    paths = [whole] if whole.exists() else sorted(folder.glob(f"{stem}-[0-9]*.parquet"))
    if not paths:
        return None
    try:
        tables = [pq.read_table(path) for path in paths]
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{folder / stem}: not readable: {error}") from None
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _read_samples(folder: Path, metric: str) -> MetricSamples:
    table = _read_table(folder, metric)
    assert table is not None, "a stem comes from a file that exists"
    rows = np.zeros(len(table), dtype=SAMPLE_DTYPE)
    for name in SAMPLE_DTYPE.names or ():
        if name != "detail":
            rows[name] = table[name].to_numpy()
    detail, details = _codes(table["detail"])
    rows["detail"] = detail
    refs = table["ref"]
    return MetricSamples(
        rows,
        details,
        *_codes(table["phase"]),
        *_codes(table["source"]),
        () if refs.null_count == len(refs) else tuple(refs.to_pylist()),
    )


def _codes(column: pa.ChunkedArray) -> tuple[np.ndarray, tuple[str, ...]]:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], type=column.type)
    return array.indices.to_numpy(zero_copy_only=False), tuple(array.dictionary.to_pylist())


def _read_readings(path: Path) -> dict[str, Series]:
    table = _read_table(path, "readings")
    if table is None:
        return {}
    codes, names = _codes(table["series"])
    t_ns, values = table["t_ns"].to_numpy(), table["value"].to_numpy()
    return {name: Series(t_ns[codes == i], values[codes == i]) for i, name in enumerate(names)}


def _read_spans(path: Path) -> tuple[Span, ...]:
    table = _read_table(path, "spans")
    return tuple(Span(**row) for row in table.to_pylist()) if table is not None else ()


def _read_marks(path: Path) -> tuple[tuple[Mark, ...], tuple[Tally, ...]]:
    """A last line that a kill cut in half is left out."""
    if not path.exists():
        return (), ()
    marks: list[Mark] = []
    tallies: list[Tally] = []
    for line in path.read_bytes().split(b"\n"):
        try:
            value = msgspec.json.decode(line, type=Mark | Tally)
        except msgspec.DecodeError:
            continue
        if isinstance(value, Mark):
            marks.append(value)
        else:
            tallies.append(value)
    return tuple(marks), tuple(tallies)
