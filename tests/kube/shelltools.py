"""Shell scripts that stand for kind, docker and helm, and say what ours said."""

from __future__ import annotations

from pathlib import Path


def tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
