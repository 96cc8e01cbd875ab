"""Private mounts: what a lab mounts is seen by its own processes only and goes away with the last of them."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

from loadgen.core.errors import HarnessError
from loadgen.kernel import libc


def private() -> None:
    """Give this process a mount namespace of its own. Mounts of the host still arrive, none of ours leave.

    unshare(2) moves only the calling thread and the threads it starts later, so this belongs at the very start,
    on the main thread; elsewhere it raises HarnessError.
    """
    if threading.current_thread() is not threading.main_thread():
        raise HarnessError("mounts.private() must be called on the main thread, before it starts others")
    scratch()


def scratch() -> None:
    """The same for the calling thread alone: its mounts go away when it ends."""
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount("none", "/", None, libc.MS_REC | libc.MS_SLAVE)


def tmpfs(path: Path) -> None:
    """Mount a tmpfs on `path`, which is made if it is missing."""
    path.mkdir(parents=True, exist_ok=True)
    libc.mount("tmpfs", path, "tmpfs", libc.MS_NOSUID | libc.MS_NODEV, "mode=0700")


def bpffs(path: Path) -> None:
    """Mount a BPF file system on `path`, where maps can be pinned."""
    path.mkdir(parents=True, exist_ok=True)
    libc.mount("bpf", path, "bpf", libc.MS_NOSUID | libc.MS_NODEV, "mode=0700")


def detach(path: Path) -> None:
    """Take away every mount at or below `path`, also those in use. None there is no error."""
    while True:
        try:
            libc.umount(path, libc.MNT_DETACH)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return
            raise
