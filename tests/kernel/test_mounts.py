"""Mounts that only we see, for as long as we live."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from loadgen.core.errors import HarnessError
from loadgen.kernel import libc, mounts, netns

pytestmark = pytest.mark.kernel


def kinds():
    """Mount point → file system, as this thread sees it."""
    lines = Path("/proc/thread-self/mountinfo").read_text().splitlines()
    return {line.split()[4]: line.split(" - ")[1].split()[0] for line in lines}


def test_the_lab_has_a_tmpfs_and_a_bpffs_that_the_host_does_not_see(lab_dir):
    assert kinds()[str(lab_dir)] == "tmpfs"
    assert kinds()[str(lab_dir / "bpf")] == "bpf"
    assert str(lab_dir) not in Path(f"/proc/{os.getppid()}/mountinfo").read_text()


def test_the_state_directory_is_for_root_only(lab_dir):
    assert lab_dir.stat().st_mode & 0o777 == 0o700


def test_scratch_mounts_go_with_the_thread(lab_dir):
    def mount():
        mounts.scratch()
        mounts.tmpfs(lab_dir / "scratch")
        return kinds()[str(lab_dir / "scratch")]

    assert netns.fresh_thread(mount) == "tmpfs"
    assert str(lab_dir / "scratch") not in kinds()


def test_private_refuses_any_thread_but_the_first():
    errors = []

    def elsewhere():
        try:
            mounts.private()
        except HarnessError as error:
            errors.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert errors == ["mounts.private() must be called on the main thread, before it starts others"]


def test_an_error_names_the_path(lab_dir):
    with pytest.raises(OSError, match=r"umount2: .*not-mounted") as caught:
        libc.umount(lab_dir / "not-mounted")
    assert caught.value.filename == str(lab_dir / "not-mounted")
