"""A pod's question about its own DaemonSet, to a server with a certificate of the pod's authority and of another."""

from __future__ import annotations

import http.server
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from loadgen.kube import incluster
from loadgen.kube.incluster import Server

PATH = "/apis/apps/v1/namespaces/kube-system/daemonsets/loadgen-agent"


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ServiceAccount's folder; its authority's key is beside it."""
    folder = tmp_path_factory.mktemp("account")
    make_certificate(folder / "ca.crt", folder / "key")
    (folder / "token").write_text("secret\n")
    return folder


def make_certificate(certificate: Path, key: Path) -> None:
    subject = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(["openssl", "req", "-x509", *new, *subject, *files], check=True, capture_output=True)


@contextmanager
def answering(status: int, body: bytes, account: Path) -> Iterator[tuple[Server, list[tuple[str, str]]]]:
    asked: list[tuple[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        requests: ClassVar = asked

        def do_GET(self) -> None:
            self.requests.append((self.path, self.headers["Authorization"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(account / "ca.crt", account / "key")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Server("127.0.0.1", server.server_address[1], account), asked
        server.shutdown()
        thread.join()


def item(**metadata: str) -> bytes:
    return json.dumps({"kind": "DaemonSet", "metadata": {"name": "loadgen-agent", **metadata}, "spec": {}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "going"),
    [
        (200, item(), False),
        (200, item(deletionTimestamp="2026-11-30T00:00:00Z"), True),
        (404, b"{}", True),
        (401, b"", True),
        (403, b"", True),
    ],
)
def test_what_the_answers_mean(account, status, body, going):
    with answering(status, body, account) as (server, asked):
        assert incluster.is_going(server, PATH) is going
    assert asked == [(PATH, "Bearer secret")]


@pytest.mark.parametrize(("status", "body"), [(500, b""), (200, b"{"), (200, b"{}")])
def test_what_is_no_answer(account, status, body):
    with answering(status, body, account) as (server, _), pytest.raises(OSError, match=f"GET {PATH}: "):
        incluster.is_going(server, PATH)


def test_a_server_of_another_authority_is_not_believed(account, tmp_path):
    make_certificate(tmp_path / "ca.crt", tmp_path / "key")
    with answering(404, b"", tmp_path) as (server, asked):
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            incluster.is_going(Server("127.0.0.1", server.port, account), PATH)
        assert asked == []


def test_a_server_that_is_not_there(account):
    with pytest.raises(ConnectionRefusedError):
        incluster.is_going(Server("127.0.0.1", 1, account), PATH)


def test_where_the_server_is(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert incluster.here() is None
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert incluster.here() == Server("10.96.0.1", 443)
