import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from loadgen.core.errors import ConfigError
from loadgen.kernel import process
from loadgen.lab import state

SLEEPER = [sys.executable, "-c", "import sys, time; print('up', flush=True); time.sleep(600)"]


def dead_lab(root: Path, name: str) -> Path:
    """A lab's folder whose owner has ended."""
    home = root / name
    (home / "lab").mkdir(parents=True)
    (home / "owner.json").write_bytes(msgspec.json.encode(state.Owner(2**22 + 1, 1)))
    return home


def test_a_dead_owners_processes_and_folder_are_removed(tmp_path: Path) -> None:
    home = dead_lab(tmp_path, "dead-lab-for-a-test")
    with subprocess.Popen(SLEEPER, stdout=subprocess.PIPE, env={process.LAB_VARIABLE: home.name}) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        (found,) = state.find(tmp_path)
        assert (found.alive, found.pids) == (False, (child.pid,))
        # The child must be reaped here, or it would stay a zombie that still bears the mark's pid.
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert [lab.id for lab in state.remove_dead(tmp_path)] == [home.name]
    assert not home.exists()
    assert process.children_of_lab(home.name) == []


def test_a_survivor_is_killed(tmp_path: Path) -> None:
    home = dead_lab(tmp_path, "survivor-lab-for-a-test")
    # A grandchild: its parent is gone, so init reaps it, as with a real survivor of a killed run.
    spawn = "import subprocess, sys; subprocess.Popen(sys.argv[1:])"
    subprocess.run([sys.executable, "-c", spawn, *SLEEPER], env={process.LAB_VARIABLE: home.name}, check=True)
    (leftover,) = state.find(tmp_path)
    assert len(leftover.pids) == 1
    state.remove(leftover)
    assert process.children_of_lab(home.name) == []
    assert not home.exists()


def test_a_living_owners_lab_is_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "mine"
    home.mkdir()
    owner = state.Owner(os.getpid(), process.start_time(os.getpid()) or 0)
    (home / "owner.json").write_bytes(msgspec.json.encode(owner))
    assert state.find(tmp_path)[0].alive
    assert state.remove_dead(tmp_path) == []
    assert home.exists()


def test_a_pid_that_was_given_to_another_process_is_not_the_owner(tmp_path: Path) -> None:
    home = tmp_path / "reused"
    home.mkdir()
    (home / "owner.json").write_bytes(msgspec.json.encode(state.Owner(os.getpid(), 1)))
    assert not state.find(tmp_path)[0].alive


def test_a_folder_without_an_owner_counts_as_dead(tmp_path: Path) -> None:
    (tmp_path / "half-made").mkdir()
    assert [lab.id for lab in state.remove_dead(tmp_path)] == ["half-made"]


def test_a_second_run_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    with state.exclusive(tmp_path):
        with pytest.raises(ConfigError, match=f"pid {os.getpid()}"), state.exclusive(tmp_path):
            pass
        with pytest.raises(ConfigError, match="another run"), state.exclusive(tmp_path):
            pass
    with state.exclusive(tmp_path):
        pass
