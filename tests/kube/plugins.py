"""Our CNI plugin, compiled, and a network that calls it as a runtime does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).parents[2] / "loadgen" / "kube" / "plugin.c"
COMPILE = ("gcc", "-O2", "-static", "-Wall", "-Wextra", "-Werror")
CONTAINER = "f" * 64


def compile_plugin(target: Path) -> Path:
    subprocess.run([*COMPILE, "-o", str(target), str(SOURCE)], check=True)
    return target


class Done(NamedTuple):
    code: int
    out: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment(command: str, netns: Path | str = "", container: str = CONTAINER) -> dict[str, str]:
    return {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": str(netns),
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web",
        "CNI_PATH": "/usr/lib/cni",
    }


def start(plugin: Path, variables: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(plugin)], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def call(plugin: Path, variables: dict[str, str], config: str) -> Done:
    """Run it to its end; nothing is ever said on stderr."""
    process = start(plugin, variables)
    out, said = process.communicate(config, timeout=60)
    assert said == ""
    return Done(process.returncode, out)
