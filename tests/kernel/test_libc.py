"""System calls fail as the functions of `os` do, and change the calling thread only."""

from __future__ import annotations

import errno
import os
import signal

import pytest

from loadgen.kernel import libc, netns

pytestmark = pytest.mark.kernel


def test_unshare_moves_only_the_calling_thread():
    def inode():
        return os.stat("/proc/thread-self/ns/net").st_ino

    def elsewhere():
        libc.unshare(libc.CLONE_NEWNET)
        return inode()

    here = inode()
    assert netns.fresh_thread(elsewhere) != here
    assert inode() == here


def test_a_namespace_of_another_kind_is_refused():
    fd = os.open("/proc/self/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with pytest.raises(OSError, match="setns: Invalid argument") as caught:
            libc.setns(fd, libc.CLONE_NEWNET)
    finally:
        os.close(fd)
    assert caught.value.errno == errno.EINVAL


def test_mount_says_what_and_where(tmp_path):
    with pytest.raises(FileNotFoundError, match="mount: No such file or directory") as caught:
        libc.mount("none", tmp_path / "nowhere", "tmpfs", 0)
    assert caught.value.filename == str(tmp_path / "nowhere")


def test_prctl_refuses_a_signal_that_is_none():
    with pytest.raises(OSError, match="prctl: Invalid argument"):
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.NSIG + 1)
