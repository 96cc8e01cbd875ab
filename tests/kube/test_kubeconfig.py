from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadgen.core.errors import ConfigError
from loadgen.kube import kubeconfig
from tests.kube.apiserver import kubeconfig as write


def load(context: str | None, where: str) -> kubeconfig.Credentials:
    return asyncio.run(kubeconfig.load(context, where))


def test_the_current_context_and_its_namespace(tmp_path: Path) -> None:
    found = load(None, write(tmp_path / "config", "http://127.0.0.1:8080/", token="secret"))
    assert (found.context, found.server, found.namespace) == ("test", "http://127.0.0.1:8080", "mine")
    assert (found.authorization, found.tls, found.proxy) == ("Bearer secret", False, None)


@pytest.mark.parametrize(
    ("content", "context", "says"),
    [
        (None, None, "no kubeconfig there; set KUBECONFIG"),
        ("a: [", None, "not readable as a kubeconfig"),
        ("\x00", None, "not readable as a kubeconfig"),
        ("[1]", None, "not readable as a kubeconfig"),
        ("contexts: []", None, "it has no current context; choose one by --context: none"),
        ("contexts: [{name: a, context: {cluster: x, user: y}}]", "b", "no context b; there are a"),
        ("contexts: [{name: a, context: {cluster: x, user: y}}]", "a", "context a: Invalid kube-config file"),
        (
            "contexts: [{name: a, context: {cluster: x}}]\nclusters: [{name: x, cluster: {a: b}}]",
            "a",
            "context a: its cluster has no server address",
        ),
        (
            "contexts: [{name: a, context: {cluster: x}}]\nclusters: [{name: x, cluster: {server: 'https://x', "
            "certificate-authority: /nowhere}}]",
            "a",
            "context a: File does not exists: /nowhere",
        ),
    ],
)
def test_a_wrong_kubeconfig_says_what_is_wrong(
    tmp_path: Path, content: str | None, context: str | None, says: str
) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError) as raised:
        load(context, str(path))
    assert says in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_file_that_cannot_be_read() -> None:
    with pytest.raises(ConfigError, match="/proc/self/mem: cannot be read: "):
        load(None, "/proc/self/mem")


def test_several_files_are_one_and_the_first_wins(tmp_path: Path) -> None:
    one = write(tmp_path / "one", "http://127.0.0.1:1")
    two = tmp_path / "two"
    two.write_text(Path(one).read_text().replace("test", "second").replace("127.0.0.1:1", "127.0.0.1:2"))
    where = os.pathsep.join([one, str(two), str(tmp_path / "missing")])
    assert load(None, where).context == "test"
    assert load("second", where).context == "second"


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "elsewhere"))
    assert kubeconfig.path_of() == str(tmp_path / "elsewhere")
    assert kubeconfig.path_of("given") == "given"


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({}, ""),
        ({"token": "t\n"}, "Bearer t"),
        ({"username": "u", "password": "p"}, f"Basic {base64.b64encode(b'u:p').decode()}"),
    ],
)
def test_who_we_are_is_said_as_the_kubeconfig_has_it(tmp_path: Path, user: dict[str, str], header: str) -> None:
    assert load(None, write(tmp_path / "config", "http://127.0.0.1:1", **user)).authorization == header


def test_a_token_file_is_read_anew_each_time(tmp_path: Path) -> None:
    config = write(tmp_path / "config", "http://127.0.0.1:1", tokenFile="token")
    for token in ("one", "two"):
        (tmp_path / "token").write_text(f"{token}\n")
        assert load(None, config).authorization == f"Bearer {token}"


# --- credential plugins


def plugin(tmp_path: Path, script: str, **more: Any) -> str:
    """A kubeconfig whose user is known by a plugin, named as beside the kubeconfig."""
    path = tmp_path / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    spec = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", **more}
    return write(tmp_path / "config", "http://127.0.0.1:1", exec=spec)


def says(**status: str) -> str:
    said = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    return f"echo '{json.dumps(said)}'"


def test_a_plugin_beside_the_kubeconfig_gives_the_token(tmp_path: Path) -> None:
    config = plugin(tmp_path, f'test "$WHO" = me || exit 3; {says(token="t")}', env=[{"name": "WHO", "value": "me"}])
    assert load(None, config).authorization == "Bearer t"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo no such profile >&2; exit 255", "its credential plugin ./plugin ended with 255: no such profile"),
        ("echo hello", "its credential plugin ./plugin gave no ExecCredential"),
        (says(), "gave neither a token nor a certificate with its key"),
        (says(clientCertificateData="x"), "gave neither a token nor a certificate with its key"),
        (
            'echo $$ > "$(dirname "$0")/pid"; exec sleep 60',
            "its credential plugin ./plugin has not answered within 0.3 s",
        ),
    ],
)
def test_a_plugin_that_fails_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str
) -> None:
    monkeypatch.setattr(kubeconfig, "PLUGIN_LIMIT_S", 0.3 if "sleep" in script else 30.0)
    with pytest.raises(ConfigError, match=f"context test: .*{told}"):
        load(None, plugin(tmp_path, script))
    if (tmp_path / "pid").exists():
        assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_plugin_that_is_not_installed_says_how_to_get_it(tmp_path: Path) -> None:
    config = plugin(tmp_path, "", command="no-such-plugin", installHint="install it with care")
    with pytest.raises(
        ConfigError, match=r"plugin no-such-plugin cannot be run: No such file.*; install it with care"
    ):
        load(None, config)


# --- proxies


@pytest.mark.parametrize(
    ("server", "proxy"),
    [
        ("https://api.example.com:6443", "http://proxy.example.com:3128"),
        ("http://api.example.com", None),
        ("https://api.inside.example.com", None),
        ("https://127.0.0.2:6443", None),
        ("https://[::1]:6443", None),
        ("https://localhost", None),
    ],
)
def test_the_environments_proxy_is_used_as_kubectl_would(
    monkeypatch: pytest.MonkeyPatch, server: str, proxy: str | None
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    monkeypatch.setenv("NO_PROXY", ".inside.example.com")
    assert kubeconfig.proxy_of(server) == proxy


def test_the_official_client_is_imported_only_when_a_kubeconfig_is_read() -> None:
    """It takes 0.15 s of CPU, and every command of ours would pay it."""
    code = "import sys, loadgen.kube.api, loadgen.kube.watch; sys.exit('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
