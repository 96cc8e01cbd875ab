"""What every kernel test needs: root, private mounts, and network namespaces that are gone afterwards."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from loadgen.kernel import libc, mounts, netns

# An example that takes long on a busy machine is no finding.
hypothesis.settings.register_profile("loadgen", deadline=None)
hypothesis.settings.load_profile("loadgen")

REQUIRE_KERNEL = os.environ.get("LOADGEN_REQUIRE_KERNEL") == "1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("kernel") is None:
        return
    why = _unusable()
    if why and REQUIRE_KERNEL:
        pytest.fail(f"{why}, and LOADGEN_REQUIRE_KERNEL=1 forbids to skip", pytrace=False)
    if why:
        pytest.skip(f"{why} (LOADGEN_REQUIRE_KERNEL=1 makes this a failure)")


def _unusable() -> str:
    if os.geteuid() != 0:
        return "needs root"
    try:
        netns.fresh_thread(libc.unshare, libc.CLONE_NEWNET | libc.CLONE_NEWNS)
    except PermissionError:
        return "needs CAP_SYS_ADMIN: this root may not make namespaces"
    return ""


@pytest.fixture(scope="session")
def lab_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tmpfs with a bpffs at `bpf`, in a mount namespace that pytest keeps to itself until its end."""
    path = tmp_path_factory.mktemp("lab")
    mounts.private()
    mounts.tmpfs(path)
    mounts.bpffs(path / "bpf")
    yield path
    libc.umount(path / "bpf", libc.MNT_DETACH)
    libc.umount(path, libc.MNT_DETACH)


_numbers = itertools.count()


@pytest.fixture
def netns_factory(lab_dir: Path) -> Iterator[Callable[[str], Path]]:
    """`make("pod")` returns the path of a new network namespace; all go when the test ends."""
    made: list[Path] = []

    def make(name: str) -> Path:
        path = lab_dir / "netns" / f"{name}-{next(_numbers)}"
        netns.create(path)
        made.append(path)
        return path

    yield make
    for path in made:
        netns.delete(path)


@pytest.fixture
def no_new_threads() -> Iterator[None]:
    """The test ends with the threads it began with."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def chromium() -> str:
    """Path of a Chromium that opens pages headless; the report's pictures are drawn by it alone."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found and REQUIRE_KERNEL:
        pytest.fail("Chromium is missing, and LOADGEN_REQUIRE_KERNEL=1 forbids to skip", pytrace=False)
    return found or pytest.skip("needs Chromium, e.g. Debian's chromium")
