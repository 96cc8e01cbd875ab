"""Whole files, archives and damage: what was whole is read, what was not is told, and nothing ever raises."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench import night
from loadgen import cli
from loadgen.core.errors import ConfigError
from loadgen.core.incident import Kind
from loadgen.diagnose import archives, streams
from loadgen.diagnose.read import Reading, read_files

CT = b"".join(night.ct_lines(1009))
FILES = {
    "ct": (CT, "tables"),
    "gops": (night.goroutines().encode(), "goroutines"),
    "status": (night.status().encode(), "statuses"),
    "metrics": (night.metrics(3).encode(), "metrics"),
    "agent": (night.agent_log().encode(), "logs"),
    "dmesg": (b"[   12.345678] nf_conntrack: nf_conntrack: table full, dropping packet\n", "logs"),
    "stat": (night.conntrack_stat(3, 3).encode(), "conntrack"),
    "pcap": (night.lookups(20, 6, 5_000_000, both=True), "dns"),
}


def read(directory: Path, files: Mapping[str, bytes]) -> Reading:
    paths = [directory / name for name in files]
    for path, data in zip(paths, files.values(), strict=True):
        path.write_bytes(data)
    return read_files(paths)


def zipped(files: Mapping[str, bytes], **options: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", options.get("compression", zipfile.ZIP_DEFLATED)) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def tarred(files: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize("name", FILES)
def test_each_kind_is_read_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    data, field = FILES[name]
    reading = read(tmp_path, {"evidence": data})
    assert len(getattr(reading.evidence, field)) == 1
    assert reading.problems == ()


def test_a_sysdump_with_a_bugtool_archive_in_it(tmp_path: Path) -> None:
    bugtool = tarred({"bugtool/cmd/ct.md": b"# cilium-dbg bpf ct list global\n\n```\n" + CT + b"```\n"})
    everything = {f"sysdump/{name}": data for name, (data, _) in FILES.items() if name != "ct"}
    whole = {**everything, "sysdump/bugtool.tar.gz": bugtool, "sysdump/pods.yaml": b"kind: List\n", "sysdump/e": b""}
    reading = read(tmp_path, {"s.zip": zipped(whole)})
    assert reading.problems == ()
    assert reading.skipped == 2
    assert reading.evidence.tables[0].entries == 1009
    assert reading.evidence.tables[0].file.endswith("s.zip:sysdump/bugtool.tar:bugtool/cmd/ct.md")
    for _, field in FILES.values():
        assert getattr(reading.evidence, field), field


def test_a_plain_tar_and_a_gzipped_list(tmp_path: Path) -> None:
    reading = read(tmp_path, {"b.tar": tarred({"ct.txt": CT}, "w:"), "ct.gz": gzip.compress(CT)})
    assert [table.entries for table in reading.evidence.tables] == [1009, 1009]
    assert reading.problems == ()


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/../../b", "..\\b", "C:\\b"])
def test_names_that_lead_out_are_refused_and_the_rest_is_read(tmp_path: Path, name: str) -> None:
    assert archives.is_outside(name)
    for archive in (zipped({name: CT, "good": CT}), tarred({name: CT, "good": CT})):
        reading = read(tmp_path, {"x": archive})
        assert [problem.what for problem in reading.problems] == ["its name leads out of the archive: refused"]
        assert len(reading.evidence.tables) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_bomb_is_refused_and_what_came_before_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.Allowance, "LEAST", 8 << 20)
    monkeypatch.setattr(streams.Allowance, "RATIO", 10)
    bomb = b"TCP OUT 1.2.3.4:5 -> 1.2.3.4:6 expires=1 Flags=0x0000 [ ]\n" * 400_000
    for data in (zipped({"good": CT, "bomb": bomb, "late": CT}), tarred({"good": CT, "bomb": bomb, "late": CT})):
        reading = read(tmp_path, {"x": data})
        assert any("refused as a zip bomb" in problem.what for problem in reading.problems), reading.problems
        assert reading.evidence.tables[0].entries == 1009
        assert len(reading.evidence.tables) == 2
        assert reading.evidence.tables[1].entries < 400_000


def test_a_damaged_member_costs_itself_only(tmp_path: Path) -> None:
    data = bytearray(zipped({"first": CT, "second": CT}, compression=zipfile.ZIP_STORED))
    data[60] ^= 0xFF
    reading = read(tmp_path, {"s.zip": bytes(data)})
    assert [table.entries + table.bad > 0 for table in reading.evidence.tables] == [True, True]
    assert reading.evidence.tables[1].entries == 1009
    assert "CRC" in " ".join(problem.what for problem in reading.problems)


def test_a_cut_zip_a_cut_tar_and_a_cut_gzip(tmp_path: Path) -> None:
    whole = {"z": zipped({"ct": CT}), "t": tarred({"ct": CT}), "g": gzip.compress(CT)}
    reading = read(tmp_path, {name: data[: len(data) * 2 // 3] for name, data in whole.items()})
    assert {problem.file.rpartition("/")[2].partition(":")[0] for problem in reading.problems} >= {"z", "t", "g"}
    assert any(table.file.endswith("g") and table.entries for table in reading.evidence.tables)


def test_unknown_and_empty_files_are_told(tmp_path: Path) -> None:
    reading = read(tmp_path, {"u": b"hello\n", "e": b"", "deep": zipped({"inner": zipped({"ct": CT})})})
    assert [kind for _, kind in reading.kinds] == [Kind.UNKNOWN, Kind.EMPTY, Kind.ZIP, Kind.ZIP]
    assert len(reading.problems) == 3


def test_a_missing_file_and_a_directory_are_usage_errors(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_files([path])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(name=st.sampled_from([*FILES, "zip", "tar", "gzip"]), cut=st.floats(0, 1), noise=st.binary(max_size=20),
       at=st.floats(0, 1))  # fmt: skip
def test_no_damage_raises(tmp_path: Path, name: str, cut: float, noise: bytes, at: float) -> None:
    small = {"a": CT[:5000], "b": FILES["gops"][0][:3000]}
    made = {"zip": zipped(small), "tar": tarred(small), "gzip": gzip.compress(CT[:9000])}
    data = made.get(name) or FILES[name][0][:20_000]
    data = data[: int(len(data) * cut)]
    where = int(len(data) * at)
    reading = read(tmp_path, {"x": data[:where] + noise + data[where + len(noise) :]})
    assert reading.kinds


HEADS = [b"", b"PK\x03\x04", b"\x1f\x8b\x08", b"\x0a\x0d\x0d\x0a", night.PCAP_HEADER, b"goroutine 1 [x]:\n",
         b"BPF Maps:  \n", b"# TYPE x\ncilium_", b"cpu=0   found=1\ncpu=", b'[{"Key":',
         b"entries a  found new\n"]  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(head=st.sampled_from(HEADS), rest=st.binary(max_size=300))
def test_no_content_raises(tmp_path: Path, head: bytes, rest: bytes) -> None:
    assert read(tmp_path, {"x": head + rest}).kinds


def loadgen(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadgen.cli", "diagnose", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_night_of_the_documentation(tmp_path: Path) -> None:
    night.write(tmp_path, 600_000)
    files = sorted(str(path) for path in tmp_path.iterdir())
    done = loadgen(*files, "--uptime", str(night.UPTIME_S))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("Likely: expired-table")
    assert "56 goroutines wait for the CT lock" in done.stdout
    assert done.stderr == ""


def test_json_is_a_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p").write_bytes(FILES["pcap"][0])
    assert cli.guarded(lambda: cli.app(["diagnose", str(tmp_path / "p"), "--json"], standalone_mode=False)) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == 1
    assert set(found) == {"format", "read", "skipped", "problems", "facts", "hypotheses"}
    first = found["hypotheses"][0]
    assert (first["id"], first["standing"]) == ("dns-race", "likely")
    assert {"for", "against", "confirm", "remedy", "reproduce", "cause"} <= set(first)


@pytest.mark.parametrize("args", [(), ("nowhere",), (".",), ("x", "--uptime", "-1"), ("x", "--nope")])
def test_wrong_use_is_one_line_and_4(args: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.guarded(lambda: cli.app(["diagnose", *args], standalone_mode=False)) == 4
    assert len(capsys.readouterr().err.splitlines()) == 1
