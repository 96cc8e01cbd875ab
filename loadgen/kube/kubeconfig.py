"""From a kubeconfig to what a connection needs. The official client reads the file and gets the credentials."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import os
import ssl
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from loadgen.core.errors import ConfigError
from loadgen.kernel.process import let_go
from loadgen.kube import plainconfig
from loadgen.kube.plainconfig import Plain

if TYPE_CHECKING:
    from kubernetes.aio.client.configuration import Configuration

PLUGIN_LIMIT_S = 60.0
"""A credential plugin may ask its user something."""


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """`authorization` "": the TLS context holds a client certificate, or the server asks for nothing."""

    context: str
    server: str
    namespace: str
    authorization: str
    """Value of the header of that name."""
    tls: Any
    """ssl.SSLContext, or False for plain HTTP."""
    server_name: str | None
    proxy: str | None


def path_of(kubeconfig: str | None = None) -> str:
    """The file, or files parted by ':', that kubectl would read."""
    return kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


async def load(context: str | None, kubeconfig: str | None = None) -> Credentials:
    """Credentials of `context` (None: the current one), fetched anew: exec plugins run each time.

    ConfigError when there is no file, no such context, or the credentials cannot be got.
    """
    where = path_of(kubeconfig)
    name, namespace = _choose(where, context)
    if plain := plainconfig.read(where, name):
        return _credentials(where, name, namespace, plain, plain.tls)
    try:
        found = await _read(where, name)
        tls = _tls(found)
    except (_official_error(), OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"{where}: context {name}: {why}") from None
    return _credentials(where, name, namespace, found, tls)


def _credentials(
    where: str, name: str, namespace: str, found: Configuration | Plain, tls: ssl.SSLContext | bool
) -> Credentials:
    server = str(found.host).rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise ConfigError(f"{where}: context {name}: its cluster has no server address")
    return Credentials(
        context=name,
        server=server,
        namespace=namespace,
        authorization=found.api_key.get("BearerToken", "").strip(),
        tls=tls,
        server_name=found.tls_server_name,
        proxy=found.proxy or proxy_of(server),
    )


def _official_error() -> type[Exception]:
    from kubernetes.aio.config import ConfigException

    return ConfigException


# --- which context ----------------------------------------------------------------------------------------------


def _choose(where: str, context: str | None) -> tuple[str, str]:
    """(context, its namespace). Of several files the first that names a context wins, as for kubectl."""
    contexts: dict[str, str] = {}
    current = ""
    existing = [Path(path) for path in where.split(os.pathsep) if path and os.path.isfile(path)]
    if not existing:
        raise ConfigError(f"{where}: no kubeconfig there; set KUBECONFIG, or make a cluster with `loadgen up`")
    for path in existing:
        try:
            content = yaml.load(path.read_text(), Loader=plainconfig.Loader) or {}
            for entry in content.get("contexts") or []:
                contexts.setdefault(entry["name"], entry["context"].get("namespace") or "default")
            current = current or content.get("current-context") or ""
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
            first = str(error).splitlines()[0]
            raise ConfigError(f"{path}: not readable as a kubeconfig: {first}") from None
    name = context or current
    if not name:
        raise ConfigError(f"{where}: it has no current context; choose one by --context: {_names(contexts)}")
    if name not in contexts:
        raise ConfigError(f"{where}: no context {name}; there are {_names(contexts)}")
    return name, contexts[name]


def _names(contexts: dict[str, str]) -> str:
    return ", ".join(sorted(contexts)) or "none"


# --- what the official client makes of it -----------------------------------------------------------------------


async def _read(where: str, name: str) -> Configuration:
    # Here, because it takes 0.15 s of CPU to import, and most of what imports this module never gets so far.
    from kubernetes.aio.client.configuration import Configuration
    from kubernetes.aio.config.kube_config import KubeConfigLoader, KubeConfigMerger

    config: Any = KubeConfigMerger(where).config
    context = config["contexts"].get_with_name(name)["context"]
    entry = config["users"].get_with_name(context["user"], safe=True) if context.safe_get("user") else None
    if entry is not None and entry.safe_get("user") and entry["user"].safe_get("exec"):
        await _resolve_plugin(entry["user"])
    found = Configuration()
    # The client's own default would be a server on localhost.
    found.host = ""
    no_base: Any = None  # each entry knows the folder of its file
    await KubeConfigLoader(config, name, config_base_path=no_base).load_and_set(found)
    return found


async def _resolve_plugin(user: Any) -> None:
    """Put what the plugin says in its place. The official client would only log one that fails, and go on without."""
    spec = user["exec"]
    command = spec["command"]
    if os.sep in command and spec.path:
        # kubectl looks for it from the kubeconfig's folder.
        spec.value["command"] = str(Path(spec.path).parent / command)
    said = await _ask_plugin(spec, command)
    user.value.pop("exec")
    if said.get("token"):
        user.value["token"] = said["token"]
    for theirs, ours in (("clientCertificateData", "client-certificate-data"), ("clientKeyData", "client-key-data")):
        if said.get(theirs):
            user.value[ours] = base64.b64encode(said[theirs].encode()).decode()
    if not said.get("token") and not (said.get("clientCertificateData") and said.get("clientKeyData")):
        raise ValueError(f"its credential plugin {command} gave neither a token nor a certificate with its key")


async def _ask_plugin(spec: Any, name: str) -> dict[str, str]:
    """The status that it answers, by the protocol of client.authentication.k8s.io.

    Not by the official client's ExecProvider, which leaves a plugin that does not answer running.
    """
    version = spec["apiVersion"]
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": sys.stdin.isatty()}}
    env = {item["name"]: item["value"] for item in spec.safe_get("env") or ()}
    argv = [spec["command"], *(str(arg) for arg in spec.safe_get("args") or ())]
    try:
        code, out, err = await _run(argv, {**env, "KUBERNETES_EXEC_INFO": json.dumps(info)})
    except TimeoutError:
        raise ValueError(
            f"its credential plugin {name} has not answered within {PLUGIN_LIMIT_S:g} s; try it by hand"
        ) from None
    except OSError as error:
        hint = spec.safe_get("installHint")
        why = f"its credential plugin {name} cannot be run: {error.strerror}"
        raise ValueError(f"{why}; {hint}" if hint else why) from None
    if code:
        raise ValueError(f"its credential plugin {name} ended with {code}: {' '.join(err.split())[-300:]}")
    try:
        said = json.loads(out)
        if said["apiVersion"] != version:
            raise ValueError(f"it speaks {said['apiVersion']}, asked for was {version}")
        return dict(said["status"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"its credential plugin {name} gave no ExecCredential: {error}") from None


async def _run(argv: list[str], env: dict[str, str]) -> tuple[int, str, str]:
    """Exit code, stdout, stderr. On our terminal, for it may ask; TimeoutError when it takes too long, ended then."""
    process = await asyncio.create_subprocess_exec(
        *argv, env={**os.environ, **env}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(PLUGIN_LIMIT_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        let_go(process)
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


def _tls(found: Configuration) -> ssl.SSLContext | bool:
    if not str(found.host).startswith("https:"):
        return False
    tls = ssl.create_default_context(cafile=found.ssl_ca_cert)
    if found.cert_file:
        tls.load_cert_chain(found.cert_file, keyfile=found.key_file)
    # Cluster CAs made by older tools lack extensions that Python 3.13 insists on.
    tls.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    if not found.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls


def proxy_of(server: str) -> str | None:
    """The proxy that the environment names for this server (HTTPS_PROXY, NO_PROXY), as kubectl would use it."""
    url = urllib.parse.urlsplit(server)
    host = url.hostname or ""
    if host == "localhost" or urllib.request.proxy_bypass(host):
        return None
    try:
        if ipaddress.ip_address(host).is_loopback:
            return None
    except ValueError:
        pass  # a name
    return urllib.request.getproxies().get(url.scheme)
