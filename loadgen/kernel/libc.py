"""The system calls that Python 3.11 has no name for. Each raises OSError as the functions of `os` do."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000

MS_BIND = 0x1000
MS_REC = 0x4000
MS_SLAVE = 1 << 19
MS_NOSUID = 2
MS_NODEV = 4
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(name: str, *args: object, about: str = "") -> int:
    result = getattr(_libc, name)(*args)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}", about or None)
    return result


def unshare(flags: int) -> None:
    """Give the calling thread (only this one) new namespaces: CLONE_NEWNS, CLONE_NEWNET."""
    _checked("unshare", ctypes.c_int(flags))


def setns(fd: int, kind: int) -> None:
    """Move the calling thread into the namespace behind `fd`, which must be of this kind."""
    _checked("setns", ctypes.c_int(fd), ctypes.c_int(kind))


def mount(source: str, target: os.PathLike[str] | str, fstype: str | None, flags: int, data: str = "") -> None:
    _checked(
        "mount",
        source.encode(),
        os.fsencode(target),
        fstype.encode() if fstype else None,
        ctypes.c_ulong(flags),
        data.encode() or None,
        about=os.fspath(target),
    )


def umount(target: os.PathLike[str] | str, flags: int = 0) -> None:
    _checked("umount2", os.fsencode(target), ctypes.c_int(flags), about=os.fspath(target))


def prctl(option: int, value: int) -> None:
    _checked("prctl", ctypes.c_int(option), ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)
