"""Whole runs of the lab through the command line, small ones: what a user does, and what may happen to them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadgen import store
from loadgen.core.history import Ending
from loadgen.core.verdict import Exit
from loadgen.kernel import process
from loadgen.lab import state

pytestmark = pytest.mark.kernel

SCENARIO = """
name: small
hypothesis: a lost second query costs five seconds
settings:
  cilium:
    bpf: {ctTcpMax: 65536, ctAnyMax: 16384}
variants:
  before: {baseline: true}
  after: {settings: {resolver: {options: single-request-reopen}}}
faults:
  leftovers: {kind: ct-fill, entries: 20000}
  race: {kind: dns-race-drop, probability: 0.3}
loads:
  storm: {driver: storm, pods: 2, targets: 500, pace: {kind: constant, rate: 100}}
  pods: {driver: churn, pace: {kind: burst, size: 5}, timeout: 30s}
  lookups: {driver: dns, pace: {kind: constant, rate: 50}}
phases:
  - {name: main, duration: 4s, loads: [storm, pods, lookups], faults: [leftovers, race], measured: true}
thresholds:
  - dns.lookup max < 2.5s
  - dns.lookup failed == 0
  - sandbox.setup failed == 0
  - storm.connect failed == 0
reproduces: [dns.lookup]
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    return path


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "loadgen.cli", *map(str, args)]


def loadgen(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*args), capture_output=True, text=True, timeout=180, check=False)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Each test ends with the namespaces, mounts, maps and labs that it began with."""
    before = traces()
    yield

    def gone() -> bool:
        now = traces()
        return all(now[kind] <= before[kind] for kind in before)

    # The kernel takes namespaces and maps away a moment after their last user is gone; others may have some as well.
    wait_until(gone, f"{traces()} instead of {before}", limit_s=120)


def traces() -> dict[str, int]:
    maps = subprocess.run(["bpftool", "map", "show"], capture_output=True, text=True, check=True).stdout
    # lsns fails when a process ends while it looks, and has then printed all the others.
    namespaces = subprocess.run(["lsns", "-t", "net", "-n", "-o", "NS"], capture_output=True, text=True, check=False)
    return {
        "labs": len(state.find()),
        "mounts": Path("/proc/1/mounts").read_text().count("loadgen"),
        "maps": len(re.findall(r"name cilium_ct", maps)),
        "namespaces": len(namespaces.stdout.split()),
    }


def wait_until(holds: Callable[[], bool], what: str, limit_s: float = 30) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def begun(out: Path, kind: str, name: str) -> bool:
    """The run's marks say that this has happened."""
    marks = [*out.glob("runs/*/marks.jsonl")]
    return any(f'"kind":"{kind}","name":"{name}"' in path.read_text() for path in marks)


def test_a_run_from_the_command_to_the_verdict(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = loadgen("run", scenario, "--out", out, "--seed", 7)
    assert done.returncode == Exit.PASS, done.stderr
    verdict = json.loads((out / "verdict.json").read_text())
    assert (verdict["format"], verdict["scenario"], verdict["verdict"]) == (1, "small", "PASS")
    assert [(v["name"], v["baseline"], v["verdict"]) for v in verdict["variants"]] == [
        ("before", True, "FAIL"),
        ("after", False, "PASS"),
    ]
    slowest = verdict["variants"][0]["findings"][0]
    assert slowest.keys() >= {
        "metric", "aggregate", "op", "limit", "unit", "observed", "n", "censored", "status", "why",
    }  # fmt: skip
    assert slowest["observed"] > 5.0
    assert any("nft rule" in text for text in verdict["variants"][0]["emulated"])

    again = loadgen("analyze", out, "--json")
    assert again.returncode == Exit.PASS
    assert json.loads(again.stdout) == verdict

    for name in ("01-before", "02-after"):
        data = store.read_run(out / "runs" / name)
        assert data.ending() is Ending.COMPLETE
        assert len(data.samples["sandbox.setup"].rows) == 5
        assert len(data.samples["storm.connect"].rows) == 2 * 100 * 4
        assert len(data.samples["dns.lookup"].rows) == 50 * 4
        # Every connection of the storm is one entry of the table, no more and no fewer.
        tcp = data.readings["ct.tcp.entries"].values
        assert tcp.max() <= 20_000 + 800
        assert {mark.kind for mark in data.marks} >= {"phase", "fault", "gc", "end"}
        drops = data.readings["race.drops"].values[-1]
        assert (drops > 20) if name == "01-before" else (drops == 0)
        assert data.readings["nfct.insert_failed"].values[-1] == 0
        assert data.readings["ct.create_failed"].values[-1] == 0


def test_without_the_fault_the_baseline_does_not_reproduce(scenario: Path, tmp_path: Path) -> None:
    done = loadgen(
        "run", scenario, "--variant", "before", "--set", "faults.race.probability=0", "--out", tmp_path / "out"
    )
    assert done.returncode == Exit.INCONCLUSIVE, done.stderr
    assert "did not reproduce" in " ".join(done.stdout.split())


def test_ctrl_c_keeps_and_analyses_what_was_measured(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(
        command("run", scenario, "--out", out, "--set", "phases.main.duration=60s"), stderr=subprocess.PIPE, text=True
    ) as running:
        wait_until(lambda: begun(out, "phase", "main"), "the phase began")
        wait_until(lambda: any(out.glob("runs/*/samples/*.parquet")), "something was flushed")
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == Exit.INTERRUPTED
    verdict = json.loads((out / "verdict.json").read_text())
    assert verdict["verdict"] != "PASS"
    data = store.read_run(out / "runs" / "01-before")
    assert data.ending() is Ending.INTERRUPTED
    assert len(data.samples["storm.connect"].rows) > 0


def test_a_killed_run_is_cleaned_up_and_analysable(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(command("run", scenario, "--out", out, "--set", "phases.main.duration=60s")) as running:
        wait_until(lambda: any(out.glob("runs/*/samples/*.parquet")), "something was flushed")
        (lab,) = [lab for lab in state.find() if lab.alive]
        assert len(lab.pids) >= 7
        running.kill()
    cleaned = loadgen("clean")
    assert cleaned.returncode == Exit.PASS
    assert f"{lab.id}: removed" in cleaned.stdout
    assert process.children_of_lab(lab.id) == []
    assert "nothing was left" in loadgen("clean").stdout
    analysed = loadgen("analyze", out)
    assert analysed.returncode in (Exit.INCONCLUSIVE, Exit.FAIL)
    assert "cut short" in " ".join(analysed.stdout.split())


@pytest.mark.parametrize("victim", ["loadgen.lab.agent", "worker-", "loadgen.lab.dnsserver"])
def test_a_dead_part_is_a_harness_failure_with_its_log(scenario: Path, tmp_path: Path, victim: str) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(
        command("run", scenario, "--out", out, "--set", "phases.main.duration=60s"), stderr=subprocess.PIPE, text=True
    ) as running:
        wait_until(lambda: begun(out, "phase", "main"), "the phase began")
        (lab,) = [lab for lab in state.find() if lab.alive]
        pids = [pid for pid in lab.pids if victim in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")]
        os.kill(pids[0], signal.SIGKILL)
        _, said = running.communicate(timeout=60)
    assert running.returncode == Exit.HARNESS
    last = said.strip().splitlines()[-1]
    assert "the harness failed" in last
    assert re.search(r"see \S+\.log", last)
    assert "Traceback" not in said
    assert not (out / "verdict.json").exists()


def test_a_full_disk_is_a_harness_failure(scenario: Path, tmp_path: Path) -> None:
    """A disk of 96 KiB has room for the beginning of a run and not for its samples."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = 'mount -t tmpfs -o size=96k tmpfs "$1"; shift; exec "$@"'
    argv = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        mounted,
        "sh",
        str(disk),
        *command("run", scenario, "--out", disk / "out"),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == Exit.HARNESS, done.stderr
    assert "the disk is full" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


LOOKUPS = """
name: lookups
hypothesis: a lost second query costs a timeout
variants: {any: {}}
faults: {race: {kind: dns-race-drop, probability: 0.3}}
loads: {lookups: {driver: dns, pace: {kind: constant, rate: 100}}}
phases: [{name: main, duration: 1s, loads: [lookups], faults: [race], measured: true}]
thresholds: [dns.lookup max < 2.5s]
"""


def test_two_settings_are_compared_until_the_answer_is_known(tmp_path: Path) -> None:
    texts = {
        "lookups": LOOKUPS,
        "current": 'resolver: {options: "timeout:1"}',
        "candidate": "resolver: {options: use-vc}",
    }
    files = {name: tmp_path / f"{name}.yaml" for name in texts}
    for name, path in files.items():
        path.write_text(texts[name])
    sides = ("--current", files["current"], "--candidate", files["candidate"])
    out = tmp_path / "out"
    done = loadgen("compare", *sides, "--scenario", files["lookups"], "--out", out, "--seed", 7, "--max-repeats", 3)
    found = json.loads((out / "compare.json").read_text())
    rows = {row["aggregate"]: row for row in found["rows"]}
    assert rows["p99"]["runs"] == [3, 3], done.stderr
    assert rows["p99"]["current"] > 1.0 > rows["p99"]["candidate"]
    assert rows["p99"]["outcome"] == "better"
    assert rows["failed"]["why"] == "none failed on either side"
    assert done.returncode == {"better": Exit.PASS, "inconclusive": Exit.INCONCLUSIVE}[found["outcome"]]
    assert found["outcome"].upper() in done.stdout


def test_a_run_that_outlasts_its_timeout_is_given_up(scenario: Path, tmp_path: Path) -> None:
    long = ("--set", "phases.main.duration=60s", "--timeout", "4s")
    done = loadgen("run", scenario, "--out", tmp_path / "out", *long)
    assert done.returncode == Exit.HARNESS, done.stderr
    assert "not done after --timeout 4 s" in done.stderr
    assert not (tmp_path / "out" / "verdict.json").exists()


def test_a_second_run_is_refused(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(
        command("run", scenario, "--out", out, "--set", "phases.main.duration=60s"), stderr=subprocess.DEVNULL
    ) as running:
        wait_until(lambda: (out / "run.json").exists(), "the first run began")
        second = loadgen("run", scenario, "--out", tmp_path / "second")
        assert second.returncode == Exit.USAGE
        assert f"another run (pid {running.pid})" in second.stderr
        assert not (tmp_path / "second").exists()
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == Exit.INTERRUPTED


def test_a_run_interrupted_while_its_lab_is_made_says_so_and_has_nothing_to_analyse(
    scenario: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(command("run", scenario, "--out", out), stderr=subprocess.PIPE, text=True) as running:
        wait_until(lambda: (out / "run.json").exists(), "the experiment began")
        running.send_signal(signal.SIGTERM)
        _, stderr = running.communicate(timeout=60)
    assert running.returncode == Exit.INTERRUPTED
    assert stderr.splitlines()[-1] == "loadgen: interrupted"
    assert not list((out / "runs").glob("*/run.json"))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("settings.cilium.profile='1.2'", "1.2"),
        ("settings.resolver.options=single-requst", "single-requst"),
        ("faults.leftovers.entries=70000", "faults.leftovers.entries: 70,000 do not fit into a table of 65,536"),
        ("loads.storm.targets=40000", "loads.storm.targets: the lab has at most 32,766 datanodes"),
        ("loads.lookups.names=['bad..name']", "names"),
    ],
)
def test_what_the_lab_cannot_do_is_said_before_anything_is_made(
    scenario: Path, tmp_path: Path, override: str, says: str
) -> None:
    done = loadgen("run", scenario, "--out", tmp_path / "out", "--set", override)
    assert done.returncode == Exit.USAGE, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
