"""Where a lab keeps its things, who owns it, and how what a killed one left is found and removed.

    /run/loadgen/ID/owner.json   pid and start time of the owner; the only file outside the lab's own mounts
    /run/loadgen/ID/lab/         a tmpfs in the owner's private mount namespace:
        netns/NAME               the network namespaces, as bind mounts
        bpf/tc/globals/          a private bpffs with the pinned CT tables
        run/                     sockets and configuration of the lab's processes

The mounts are visible to the owner and its children only, and every child dies with its parent; so a kill -9 of the
owner takes namespaces, pins and nft tables with it. `clean` ends children that are left all the same.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.units import enc_hook
from loadgen.kernel import mounts, process

ROOT = Path("/run/loadgen")


class Owner(msgspec.Struct, frozen=True):
    pid: int
    start_time: int
    """Field 22 of /proc/PID/stat: tells this process from a later one with the same pid."""


@contextmanager
def exclusive(root: Path = ROOT) -> Iterator[None]:
    """Hold the machine's lab lock, which the kernel frees when we die. ConfigError while another run has it.

    Two labs would not disturb each other's namespaces, but they would share the CPUs and nf_conntrack's limit, and
    neither one's numbers would mean anything.
    """
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise ConfigError(
                f"another run (pid {holder}) has the lab; two at once would measure each other"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


class LabState:
    """One lab's place. Made once a process; each deployment gets a fresh set of mounts in it."""

    def __init__(self, root: Path = ROOT) -> None:
        self.id = f"{os.getpid()}-{os.urandom(3).hex()}"
        self.home = root / self.id
        self.lab = self.home / "lab"
        self.netns = self.lab / "netns"
        self.bpf = self.lab / "bpf"
        self.pins = self.bpf / "tc" / "globals"
        self.run = self.lab / "run"

    def claim(self) -> None:
        """Write the owner and go into a mount namespace of our own. ConfigError when the place cannot be made."""
        owner = Owner(os.getpid(), process.start_time(os.getpid()) or 0)
        try:
            self.lab.mkdir(parents=True)
            (self.home / "owner.json").write_bytes(msgspec.json.encode(owner))
        except OSError as error:
            raise ConfigError(f"{self.home}: cannot keep the lab's state there: {error}") from None
        mounts.private()

    def mount(self) -> None:
        """A fresh tmpfs with a bpffs in it."""
        mounts.tmpfs(self.lab)
        for folder in (self.netns, self.bpf, self.run):
            folder.mkdir()
        mounts.bpffs(self.bpf)
        self.pins.mkdir(parents=True)

    def write_config(self, name: str, config: object) -> Path:
        """`config` as JSON where the lab's processes can read it."""
        path = self.run / f"{name}.json"
        path.write_bytes(msgspec.json.encode(config, enc_hook=enc_hook))
        return path

    def unmount(self) -> None:
        """Take the mounts away, and with them every namespace and pin that nothing else holds. Idempotent."""
        mounts.detach(self.lab)

    def release(self) -> None:
        """Leave nothing."""
        self.unmount()
        shutil.rmtree(self.home, ignore_errors=True)


class Leftover(msgspec.Struct, frozen=True):
    """A lab found below /run/loadgen."""

    id: str
    home: Path
    alive: bool
    pids: tuple[int, ...]


def find(root: Path = ROOT) -> list[Leftover]:
    """Labs of running and of dead owners."""
    if not root.is_dir():
        return []
    return [
        Leftover(home.name, home, _owner_alive(home), tuple(process.children_of_lab(home.name)))
        for home in sorted(root.iterdir())
        if home.is_dir()
    ]


def _owner_alive(home: Path) -> bool:
    try:
        owner = msgspec.json.decode((home / "owner.json").read_bytes(), type=Owner)
    except (OSError, msgspec.MsgspecError):
        return False
    return process.start_time(owner.pid) == owner.start_time


def remove(leftover: Leftover) -> None:
    """End a dead owner's processes and remove its folder. HarnessError when a process will not end."""
    for pid in leftover.pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + 10
    while alive := process.children_of_lab(leftover.id):
        if time.monotonic() > deadline:
            raise HarnessError(f"lab {leftover.id}: processes {alive} do not end")
        time.sleep(0.05)
    shutil.rmtree(leftover.home, ignore_errors=True)


def remove_dead(root: Path = ROOT) -> list[Leftover]:
    """Remove every lab whose owner is dead; what a new run does first. Returns what was removed."""
    dead = [leftover for leftover in find(root) if not leftover.alive]
    for leftover in dead:
        remove(leftover)
    return dead
