"""Real programs of Kubernetes' for tests: from LOADGEN_K8S_BIN, from PATH, or as `make e2e` has built them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

_BUILT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loadgen-e2e" / "bin"


def binary(name: str) -> str:
    """Its path; without one the test is skipped, and says what would help."""
    places = os.pathsep.join([os.environ.get("LOADGEN_K8S_BIN", ""), os.environ.get("PATH", ""), str(_BUILT)])
    found = shutil.which(name, path=places)
    return found or pytest.skip(f"needs {name}: on PATH, in LOADGEN_K8S_BIN, or built by `make e2e`")
