"""The kubeconfigs that most clusters have, read without the official client: it takes 0.2 s of CPU to import.

That is as much as a churn worker needs for fifty pods. Whatever is not as plain as here is the official client's.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import yaml

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    server: str
    certificate_authority_data: str = ""
    tls_server_name: str | None = None
    extensions: Any = None


class _User(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    client_certificate_data: str = ""
    client_key_data: str = ""
    token: str = ""


class Plain(msgspec.Struct, frozen=True):
    """What a connection needs; called as in the official client's Configuration."""

    host: str
    tls_server_name: str | None
    api_key: dict[str, str]
    tls: Any
    """ssl.SSLContext, or False for plain HTTP."""
    proxy: str | None = None


def read(where: str, context: str) -> Plain | None:
    """None: it needs the official client, be it for a credential plugin or to say what is wrong."""
    if os.pathsep in where:
        return None
    try:
        content = yaml.load(Path(where).read_text(), Loader=Loader)
        chosen = _named(content, "contexts", context)["context"]
        cluster = msgspec.convert(_named(content, "clusters", chosen["cluster"])["cluster"], _Cluster)
        user = msgspec.convert(_named(content, "users", chosen["user"])["user"] or {}, _User)
        tls = _tls(cluster, user) if cluster.server.startswith("https:") else False
    except (OSError, ValueError, KeyError, TypeError, StopIteration, yaml.YAMLError):
        return None
    token = {"BearerToken": f"Bearer {user.token}"} if user.token.strip() else {}
    return Plain(cluster.server, cluster.tls_server_name, token, tls)


def _tls(cluster: _Cluster, user: _User) -> ssl.SSLContext:
    """ValueError or ssl.SSLError when the data is not what it should be."""
    tls = ssl.create_default_context(cadata=_decode(cluster.certificate_authority_data).decode() or None)
    # Cluster CAs made by older tools lack extensions that Python 3.13 insists on.
    tls.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    certificate, key = (_decode(data) for data in (user.client_certificate_data, user.client_key_data))
    if certificate or key:
        with tempfile.NamedTemporaryFile() as file:  # for its owner alone, and gone at once
            file.write(certificate + b"\n" + key)
            file.flush()
            tls.load_cert_chain(file.name)
    return tls


def _decode(data: str) -> bytes:
    return base64.b64decode(data, validate=True)


def _named(content: Any, section: str, name: str) -> Any:
    return next(entry for entry in content[section] if entry["name"] == name)
