"""Children that die with their parent, and marks that find the others."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from loadgen.kernel import process

pytestmark = pytest.mark.kernel


@contextmanager
def child(program="", **environment):
    """A Python process that runs `program`, says so, and waits for its stdin to close."""
    code = f"import os, sys\n{program}\nprint('ready', flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
    ) as running:
        assert running.stdout.readline() == "ready\n"
        yield running
        running.stdin.close()


def test_children_of_a_lab_are_found_by_their_environment():
    with child(LOADGEN_LAB="a1") as one, child(LOADGEN_LAB="a1") as two, child(LOADGEN_LAB="a12"):
        assert process.children_of_lab("a1") == sorted([one.pid, two.pid])
    assert process.children_of_lab("a1") == []


def test_start_time_tells_one_process_from_the_next():
    with child() as one:
        started = process.start_time(one.pid)
        assert started == process.start_time(one.pid)
        assert process.start_time(1) <= started
    assert process.start_time(one.pid) is None


GRANDCHILD = """
import os, signal
from loadgen.kernel import process
process.die_with_parent({parent})
print(os.getpid(), flush=True)
signal.pause()
"""
PARENT = f"""
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", {GRANDCHILD!r}.format(parent=os.getpid())])
sys.stdin.read()
"""


def test_a_child_dies_with_its_parent():
    """Parent and grandchild hold our pipe open: its end of file says that both are gone."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert process.start_time(int(parent.stdout.readline())) is not None
        parent.kill()
        assert parent.stdout.read() == ""


def test_a_child_whose_parent_is_gone_already_ends_at_once():
    code = "from loadgen.kernel import process; process.die_with_parent(2**22); print('alive')"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
