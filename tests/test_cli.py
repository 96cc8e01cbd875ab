import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen import cli
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.verdict import Exit
from loadgen.scenarios import loader


def call(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loadgen.cli", *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        check=False,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100", "PYTHONDONTWRITEBYTECODE": "1"},
    )


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "no-such"], "no scenario 'no-such': it is neither a file nor one of the built-in chaos"),
        (
            ["run", "dns-race", "--variant", "nope"],
            "--variant nope: dns-race has no such variant; it has before, after",
        ),
        (["run", "dns-race", "--factorial"], "--factorial: dns-race has no variants that are one fix of several"),
        (
            ["run", "dns-race", "--set", "faults.race.probability=2"],
            "faults.race.probability: Expected 'float' <= 1.0",
        ),
        (["run", "dns-race", "--set", "loads.lookups.pce=2"], "loads.lookups.pce: unknown key"),
        (["run", "dns-race", "--testbed", "moon"], "--testbed moon: unknown; allowed: lab"),
        (["run", "dns-race", "--timeout", "60"], "--timeout: bad duration '60': it has no unit"),
        (["run", "dns-race", "--repeat", "0"], "Invalid value for '--repeat'"),
        (["run", "dns-race", "--nope"], "No such option: --nope"),
        (["nope"], "No such command 'nope'"),
        (["run"], "Missing argument 'SCENARIO'"),
        (["analyze", "nowhere"], "nowhere: no run here: run.json is missing"),
        (["validate", "pyproject.toml"], "pyproject.toml"),
        (["simulate", "no-such"], "no fleet 'no-such': it is neither a file nor a built-in one: trino-lands"),
        (["simulate", "trino-lands", "--hours", "0"], "--hours 0: it must be more than 0"),
        (
            ["simulate", "trino-lands", "--set", "nodes.big.cpu=3"],
            "nodes.big.cpu: unknown key (did you mean 'cpus'?)",
        ),
        (["simulate", "trino-lands", "--policy", "x"], "--policy 'x': no such policy; there are current, gc-60s"),
        (["simulate", "trino-lands", "--calibrate", "nowhere"], "--calibrate nowhere: not a run directory"),
        (["simulate", "trino-lands", "--out", "loadgen"], "--out loadgen: the directory is not empty"),
    ],
)
def test_wrong_use_gets_one_clear_line_and_exit_4(args: list[str], says: str) -> None:
    done = call(*args)
    assert done.returncode == Exit.USAGE
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_without_root_a_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    out = tmp_path / "out"
    code = cli.guarded(lambda: cli.app(["run", "dns-race", "--out", str(out)], standalone_mode=False))
    assert code == Exit.USAGE
    assert "root" in capsys.readouterr().err
    assert not out.exists()


def test_an_output_directory_with_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    done = call("analyze", str(tmp_path))
    assert done.returncode == Exit.USAGE
    assert "run.json" in done.stderr


def test_no_arguments_show_the_help() -> None:
    done = call()
    assert done.returncode == Exit.USAGE
    assert "chaos" in done.stdout


def test_list_names_every_scenario_with_its_variants() -> None:
    done = call("list")
    assert done.returncode == Exit.PASS
    for name in loader.builtin_names():
        assert name in done.stdout
    assert "nodelocal" in done.stdout


def test_validate_accepts_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "{name: mine, hypothesis: h, variants: {only: {}}, loads: {l: {driver: dns}},"
        " phases: [{name: p, duration: 1s, loads: [l]}], thresholds: [dns.lookup max < 1s]}"
    )
    done = call("validate", str(path))
    assert done.returncode == Exit.PASS
    assert "mine is a valid scenario" in " ".join(done.stdout.split())


def test_a_dry_run_tells_the_plan_and_runs_nothing(tmp_path: Path) -> None:
    done = call("chaos", "--dry-run", "--factorial", "--repeat", "2", cwd=tmp_path)
    assert done.returncode == Exit.PASS
    assert "08-after" in done.stdout
    assert "phase burst (measured): up to 125s: storm, pods, lookups" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_schema_is_json() -> None:
    assert json.loads(call("schema").stdout)["title"] == "loadgen scenario, format 1"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), Exit.USAGE),
        (HarnessError("x"), Exit.HARNESS),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
    ],
)
def test_every_kind_of_failure_has_its_exit_code(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise error

    assert cli.guarded(broken) == code
    assert capsys.readouterr().err.startswith("loadgen: ")


def test_simulate_from_a_file_to_a_report(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "name: tiny\n"
        "nodes: {one: {memory: 8GiB, cpus: 2, workloads: [pods]}}\n"
        "workloads: {pods: {pods: {burst: 2}}}\n"
        "policies: {fixed: {settings: {conntrackGCInterval: 60s}}}\n"
    )
    args = ("simulate", str(fleet), "--hours", "3", "--seed", "4", "--out", str(tmp_path / "out"), "--json")
    done = call(*args)
    assert (done.returncode, done.stdout.count("\n") > 10) == (Exit.PASS, True), done.stderr
    found = json.loads(done.stdout)
    assert {p["policy"] for p in found["policies"]} == {"current", "fixed"}
    assert found == json.loads((tmp_path / "out" / "simulation.json").read_text())
    assert (tmp_path / "out" / "report.html").stat().st_size > 50_000
    again = call(*args[:-3], "--set", "nodes.one.count=2")
    assert again.returncode == Exit.PASS
    assert "of 12" in again.stdout
