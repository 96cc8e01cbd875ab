"""A Docker daemon of our own: own data, own socket, containers that reach nothing outside this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from e2e.machine.steps import FILES, STATE, apt_install, run, step

SOCKET = STATE / "docker.sock"
HOST = f"unix://{SOCKET}"
_CONFIG, _PID, _LOG = STATE / "daemon.json", STATE / "docker.pid", STATE / "dockerd.log"
_READY_LIMIT_S = 60
_STOP_LIMIT_S = 60

# Nodes and pods talk to each other; what they send elsewhere, say to a Service address before kube-proxy is up, would
# leave this machine.
_GUARD = """
table inet loadgen_e2e
delete table inet loadgen_e2e
table inet loadgen_e2e {
    chain forward {
        type filter hook forward priority -10;
        ip saddr { 172.28.0.0/15, 10.244.0.0/15 } ip daddr != { 172.28.0.0/15, 10.244.0.0/15 } reject
    }
}
"""


def pid() -> int | None:
    """Our daemon's, when it runs."""
    try:
        number = int(_PID.read_text())
        name = Path(f"/proc/{number}/comm").read_text().strip()
    except (OSError, ValueError):
        return None
    return number if name == "dockerd" else None


def start() -> None:
    """Idempotent. Several kind nodes need more inotify instances than Debian's 128."""
    apt_install(["docker.io", "iptables", "nftables", "jq", "runc"])
    run("sysctl", "-qw", "fs.inotify.max_user_instances=8192", "fs.inotify.max_user_watches=524288")
    run("nft", "-f", "-", text=_GUARD)
    if pid() is not None:
        return
    with step("starting dockerd"):
        STATE.mkdir(parents=True, exist_ok=True)
        _PID.unlink(missing_ok=True)
        shutil.copy(FILES / "runc-bounded", STATE / "runc-bounded")
        (STATE / "runc-bounded").chmod(0o755)
        _CONFIG.write_text(json.dumps(_config(), indent=1))
        with _LOG.open("ab") as log:
            subprocess.Popen(
                ["dockerd", "--config-file", str(_CONFIG)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + _READY_LIMIT_S
        while subprocess.run(["docker", "-H", HOST, "version"], capture_output=True, check=False).returncode:
            if time.monotonic() > deadline:
                raise SystemExit(f"e2e: dockerd did not come up; see {_LOG}")
            time.sleep(0.2)


def _config() -> dict[str, object]:
    return {
        "data-root": str(STATE / "docker"),
        "exec-root": str(STATE / "exec"),
        "pidfile": str(_PID),
        "hosts": [HOST],
        "oom-score-adjust": 0,
        "storage-driver": "overlay2",
        "runtimes": {"bounded": {"path": str(STATE / "runc-bounded")}},
        "default-runtime": "bounded",
        "bip": "172.29.0.1/24",
        "default-address-pools": [{"base": "172.28.0.0/16", "size": 24}],
    }


def stop() -> None:
    """End our daemon and with it every container. Idempotent."""
    number = pid()
    if number is None:
        return
    with step("stopping dockerd"):
        containers = docker("ps", "-q").split()
        if containers:
            docker("rm", "-fv", *containers)
        os.kill(number, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_LIMIT_S
        while pid() is not None and time.monotonic() < deadline:
            time.sleep(0.1)
    for bridge in Path("/sys/class/net").glob("br-*"):
        if _ours(bridge.name):
            run("ip", "link", "delete", bridge.name)
    run("nft", "delete", "table", "inet", "loadgen_e2e")


def _ours(bridge: str) -> bool:
    """One of dockerd's bridges with an address from our pools; dockerd leaves them when it ends."""
    return " 172.28." in run("ip", "-4", "-o", "addr", "show", "dev", bridge)


def docker(*args: str | Path, text: str | None = None) -> str:
    return run("docker", "-H", HOST, *args, text=text, env={"DOCKER_BUILDKIT": "0"})
