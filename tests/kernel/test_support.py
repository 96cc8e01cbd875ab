"""Probes that do the thing itself, leave nothing, and tell "cannot" from "could not find out"."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from loadgen.core.errors import HarnessError, NotSupported
from loadgen.kernel import netns, nft, support
from loadgen.kernel.support import Feature, Probe


@pytest.mark.kernel
def test_a_machine_that_runs_these_tests_has_everything():
    features = support.probe_all()
    assert [feature for feature in features if feature.state != "ok"] == []
    assert [f.name for f in features] == ["root", "namespaces", *(p.name for p in support.PROBES), "memory"]


@pytest.mark.kernel
@pytest.mark.usefixtures("no_new_threads")
def test_probing_leaves_nothing_behind(lab_dir, netns_factory, monkeypatch):
    here = netns_factory("here")
    monkeypatch.setattr("tempfile.tempdir", str(lab_dir))

    def state():
        commands = (["nft", "list", "ruleset"], ["ip", "link"])
        shown = [subprocess.run(command, capture_output=True, check=True).stdout for command in commands]
        return shown, Path("/proc/thread-self/mountinfo").read_text(), sorted(os.listdir("/proc/self/fd"))

    before, files = netns.call(here, state), set(lab_dir.iterdir())
    netns.call(here, support.probe_all)
    assert netns.call(here, state) == before
    assert set(lab_dir.iterdir()) == files


def raising(error: Exception, cause: Exception | None = None) -> Probe:
    def probe(directory: Path) -> str:
        raise error from cause

    return Probe("thing", "do this", probe)


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        pytest.param(
            raising(OSError(errno.EOPNOTSUPP, "veth: Operation not supported")),
            Feature("thing", "missing", "veth: Operation not supported", "do this"),
            id="the kernel cannot",
        ),
        pytest.param(
            raising(OSError(errno.ENOMEM, "Cannot allocate memory")),
            Feature("thing", "unknown", "Cannot allocate memory", "do this"),
            id="no memory just now",
        ),
        pytest.param(
            raising(NotSupported("nft", "the program is not installed", "apt install nftables")),
            Feature("thing", "missing", "nft: the program is not installed; apt install nftables", "do this"),
            id="not installed",
        ),
        pytest.param(
            raising(HarnessError("BPF: load: Permission denied"), PermissionError(errno.EACCES, "load")),
            Feature("thing", "missing", "BPF: load: Permission denied", "do this"),
            id="the verifier refuses",
        ),
        pytest.param(
            raising(HarnessError("nft -j -f -: Error: Could not process rule: Operation not supported")),
            Feature(
                "thing", "missing", "nft -j -f -: Error: Could not process rule: Operation not supported", "do this"
            ),
            id="nft says the kernel cannot",
        ),
        pytest.param(
            raising(HarnessError("nft did not end within 30 s")),
            Feature("thing", "unknown", "nft did not end within 30 s", "do this"),
            id="no answer",
        ),
    ],
)
def test_what_a_failure_says_about_the_feature(probe, expected, tmp_path):
    assert support.run(probe, tmp_path) == expected


@pytest.mark.parametrize(
    ("meminfo", "state", "why"),
    [
        ("MemAvailable: 8388608 kB\n", "ok", "8.0 GiB available"),
        ("MemAvailable:  524288 kB\n", "missing", "0.5 GiB available"),
        ("MemTotal: 1 kB\n", "unknown", "no MemAvailable in meminfo"),
    ],
)
def test_memory(meminfo, state, why, tmp_path):
    (tmp_path / "meminfo").write_text(meminfo)
    feature = support.memory(tmp_path / "meminfo")
    assert (feature.state, feature.why) == (state, why)


def test_without_root_nothing_else_is_tried(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    root, *others = support.probe_all()
    assert (root.name, root.state, root.remedy) == ("root", "missing", "run with sudo")
    assert {feature.state for feature in others if feature.name != "memory"} == {"unknown"}


@pytest.mark.kernel
def test_a_missing_program_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotSupported, match="nft: the program is not installed; apt install nftables"):
        nft.version()
