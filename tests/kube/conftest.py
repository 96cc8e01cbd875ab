from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH; `tool` puts programs there that say what ours said."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("KIND_EXPERIMENTAL_PROVIDER", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
