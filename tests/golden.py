"""Text that is held against a file: what a report looks like as a whole, so that a change of it is seen in review."""

from __future__ import annotations

import os
from pathlib import Path

UPDATE = os.environ.get("LOADGEN_UPDATE_GOLDEN") == "1"


def assert_golden(path: Path, text: str) -> None:
    """`text` equals the file at `path`. With LOADGEN_UPDATE_GOLDEN=1 the file is written anew instead: review it."""
    if UPDATE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; LOADGEN_UPDATE_GOLDEN=1 writes it anew"
