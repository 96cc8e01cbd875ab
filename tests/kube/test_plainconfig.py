"""The short way to read a kubeconfig, held against the official client's long one."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from loadgen.kube import kubeconfig, plainconfig


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Certificate and key as a kubeconfig holds them."""
    folder = tmp_path_factory.mktemp("keys")
    request = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=us")
    subprocess.run([*request, "-keyout", "key", "-out", "crt"], cwd=folder, check=True, capture_output=True)
    return {name: base64.b64encode((folder / name).read_bytes()).decode() for name in ("key", "crt")}


def write(path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> str:
    config = {
        "contexts": [
            {"name": "other", "context": {"cluster": "none", "user": "none"}},
            {"name": "test", "context": {"cluster": "c", "user": "u", "namespace": "mine"}},
        ],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "none", "user": None}, {"name": "u", "user": user}],
    }
    path.write_text(json.dumps(config))
    return str(path)


def both(where: str, monkeypatch: pytest.MonkeyPatch) -> list[kubeconfig.Credentials]:
    """The short way, then the long one."""
    assert plainconfig.read(where, "test") is not None
    found = [asyncio.run(kubeconfig.load("test", where))]
    monkeypatch.setattr(plainconfig, "read", lambda where, context: None)
    return [*found, asyncio.run(kubeconfig.load("test", where))]


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({"server": "http://10.0.0.1:8080/"}, {}),
        ({"server": "http://10.0.0.1:8080"}, {"token": " secret\n"}),
        ({"server": "http://10.0.0.1:8080", "extensions": [{"name": "minikube"}]}, {"token": "secret"}),
        ({"server": "https://10.0.0.1:6443", "tls-server-name": "api.local"}, {"token": "secret"}),
    ],
)
def test_the_short_way_gives_what_the_long_one_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: dict[str, Any], user: dict[str, Any]
) -> None:
    short, long = both(write(tmp_path / "config", cluster, user), monkeypatch)
    for field in ("context", "server", "namespace", "authorization", "server_name", "proxy"):
        assert getattr(short, field) == getattr(long, field), field
    assert isinstance(short.tls, ssl.SSLContext) == isinstance(long.tls, ssl.SSLContext)


def test_a_ca_and_a_client_certificate_are_in_the_tls_context_and_not_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cluster = {"server": "https://10.0.0.1:6443", "certificate-authority-data": keys["crt"]}
    user = {"client-certificate-data": keys["crt"], "client-key-data": keys["key"]}
    where = write(tmp_path / "config", cluster, user)
    short, long = both(where, monkeypatch)
    assert short.tls.get_ca_certs() == long.tls.get_ca_certs() != []
    assert (short.tls.verify_mode, short.tls.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (short.tls.verify_mode, short.tls.verify_flags) == (long.tls.verify_mode, long.tls.verify_flags)
    left = [path for path in tmp_path.iterdir() if path.name != "config" and b"PRIVATE" in path.read_bytes()]
    assert len(left) <= 1  # the official client's, until the process ends


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({"certificate-authority": "/etc/ca.crt"}, {}),
        ({"insecure-skip-tls-verify": True}, {}),
        ({"proxy-url": "http://proxy:3128"}, {}),
        ({"certificate-authority-data": "%%%"}, {}),
        ({}, {"exec": {"command": "aws"}}),
        ({}, {"auth-provider": {"name": "oidc"}}),
        ({}, {"tokenFile": "token"}),
        ({}, {"username": "u", "password": "p"}),
        ({}, {"client-certificate": "/etc/me.crt", "client-key": "/etc/me.key"}),
        ({}, {"client-certificate-data": "eA=="}),
        ({}, {"as": "somebody"}),
        ({}, {"token": 5}),
    ],
)
def test_what_is_not_plain_is_left_to_the_official_client(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]
) -> None:
    where = write(tmp_path / "config", {"server": "https://10.0.0.1:6443", **cluster}, user)
    assert plainconfig.read(where, "test") is None


def test_files_that_are_wrong_or_several_are_left_to_it_too(tmp_path: Path) -> None:
    where = write(tmp_path / "config", {"server": "http://10.0.0.1"}, {})
    assert plainconfig.read(where, "test") is not None
    assert plainconfig.read(where, "other") is None  # no such cluster
    assert plainconfig.read(where, "nobody") is None
    assert plainconfig.read(os.pathsep.join([where, where]), "test") is None
    assert plainconfig.read(str(tmp_path / "missing"), "test") is None
    for text in ("a: [", "[1]", ""):
        (tmp_path / "bad").write_text(text)
        assert plainconfig.read(str(tmp_path / "bad"), "test") is None


def test_the_official_client_is_not_even_imported(tmp_path: Path) -> None:
    where = write(tmp_path / "config", {"server": "http://10.0.0.1"}, {"token": "t"})
    code = (
        "import asyncio, sys; from loadgen.kube import kubeconfig; "
        f"print(asyncio.run(kubeconfig.load('test', {where!r})).authorization, 'kubernetes' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Bearer t False\n"
