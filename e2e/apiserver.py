"""A real etcd and a real kube-apiserver on loopback, with nothing behind them: what a client can be tried on."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.machine.steps import BIN, run

START_LIMIT_S = 60.0
TOKENS = {"admin": ("admin-token", "system:masters"), "stranger": ("stranger-token", "strangers")}
"""User → (its token, its group)."""


def binaries() -> Path | None:
    """The folder with etcd and kube-apiserver: LOADGEN_K8S_BIN, or the cache of `python -m e2e.machine build`."""
    folder = Path(os.environ.get("LOADGEN_K8S_BIN") or BIN)
    return folder if all(shutil.which(name, path=folder) for name in ("etcd", "kube-apiserver")) else None


class ApiServer:
    """etcd and kube-apiserver with their files in `folder`; `start` and `stop` may be repeated."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder, self._binaries = folder, binaries
        self._etcd_port, self._peer_port, self.port = free_ports(3)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._make_keys()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    # --- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Return when it is ready."""
        etcd = f"http://127.0.0.1:{self._etcd_port}"
        peer = f"http://127.0.0.1:{self._peer_port}"
        if "etcd" not in self._processes:
            self._spawn(
                "etcd",
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            )
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            # Compacted when a test says so.
            "--etcd-compaction-interval=0",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={self.folder / 'server.crt'}",
            f"--tls-private-key-file={self.folder / 'server.key'}",
            f"--client-ca-file={self.folder / 'ca.crt'}",
            f"--token-auth-file={self.folder / 'tokens'}",
            "--authorization-mode=RBAC",
            # There is no controller that makes service accounts.
            "--disable-admission-plugins=ServiceAccount",
            "--service-account-issuer=https://loopback",
            f"--service-account-key-file={self.folder / 'ca.key'}",
            f"--service-account-signing-key-file={self.folder / 'ca.key'}",
            "--service-cluster-ip-range=10.96.0.0/24",
        )
        self._wait_ready()

    def stop(self, *names: str) -> None:
        """End these processes, or both."""
        for name in names or ("kube-apiserver", "etcd"):
            process = self._processes.pop(name, None)
            if process is not None:
                process.kill()
                process.wait()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The API server stands still meanwhile: each of its threads has stopped."""
        process = self._processes["kube-apiserver"]
        process.send_signal(signal.SIGSTOP)
        try:
            tasks = Path(f"/proc/{process.pid}/task")
            while any(stat.read_text().rpartition(")")[2].split()[0] != "T" for stat in tasks.glob("*/stat")):
                time.sleep(0.01)
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def cpu_s(self) -> float:
        """CPU seconds that the API server has used."""
        stat = Path(f"/proc/{self._processes['kube-apiserver'].pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def compact(self) -> None:
        """Make etcd forget its past, as the API server lets it do every five minutes."""
        key = base64.b64encode(b"x").decode()
        revision = self._etcd("range", {"key": key})["header"]["revision"]
        self._etcd("compaction", {"revision": revision, "physical": True})

    def _etcd(self, call: str, body: dict[str, Any]) -> Any:
        path = "kv/compaction" if call == "compaction" else f"kv/{call}"
        url = f"http://127.0.0.1:{self._etcd_port}/v3/{path}"
        request = urllib.request.Request(url, json.dumps(body).encode())
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            return json.load(answer)

    # --- ways in ------------------------------------------------------------------------------------------------

    def kubeconfig(self, path: Path, *, server: str | None = None, **user: Any) -> str:
        """A kubeconfig with one context, `real`; `user` as a kubeconfig knows it, by default the admin's token."""
        cluster = {"server": server or self.url, "certificate-authority": str(self.folder / "ca.crt")}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "real",
                    "contexts": [{"name": "real", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": user or {"token": TOKENS["admin"][0]}}],
                }
            )
        )
        return str(path)

    # --- inside -------------------------------------------------------------------------------------------------

    def _spawn(self, name: str, *args: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            argv = [str(self._binaries / name), *args]
            self._processes[name] = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _wait_ready(self) -> None:
        tls = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)
        )
        request = urllib.request.Request(
            f"{self.url}/readyz", headers={"Authorization": f"Bearer {TOKENS['admin'][0]}"}
        )
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                opener.open(request, timeout=5).close()
                return
            except (urllib.error.URLError, OSError) as error:
                self._check_alive()
                if time.monotonic() > deadline:
                    raise RuntimeError(f"kube-apiserver is not ready after {START_LIMIT_S:g} s: {error}") from error
                time.sleep(0.2)

    def _check_alive(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                words = (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{name} ended with {process.returncode}:\n{words}")

    def _make_keys(self) -> None:
        """A CA, a server certificate for 127.0.0.1, a client certificate of the admin, and the tokens."""
        folder = self.folder
        lines = [f"{token},{user},{user},{group}\n" for user, (token, group) in TOKENS.items()]
        (folder / "tokens").write_text("".join(lines))
        openssl = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30")
        run(*openssl, "-keyout", folder / "ca.key", "-out", folder / "ca.crt", "-subj", "/CN=ca")
        signed = ("-CA", folder / "ca.crt", "-CAkey", folder / "ca.key")
        for name, subject, extension in (
            ("server", "/CN=apiserver", "subjectAltName=IP:127.0.0.1"),
            ("client", f"/CN=admin/O={TOKENS['admin'][1]}", "extendedKeyUsage=clientAuth"),
        ):
            files = ("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt")
            run(*openssl, *files, "-subj", subject, "-addext", extension, *signed)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody has at the moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
