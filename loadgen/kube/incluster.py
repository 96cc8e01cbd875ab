"""What a pod of ours asks the API server about itself, with its ServiceAccount and the standard library."""

from __future__ import annotations

import http.client
import os
import ssl
from pathlib import Path

import msgspec

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LIMIT_S = 5.0


class Server(msgspec.Struct, frozen=True):
    host: str
    port: int
    account: Path = ACCOUNT


class _Metadata(msgspec.Struct):
    deletion: str = msgspec.field(name="deletionTimestamp", default="")


class _Item(msgspec.Struct):
    metadata: _Metadata


def here() -> Server | None:
    """The server of the cluster that this pod runs in; None outside of one."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    return Server(host, int(port)) if host and port else None


def is_going(server: Server, path: str) -> bool:
    """Whether the object at `path` is gone or being deleted. OSError when the server does not say.

    Refused credentials mean the same: they are ours as long as we are wanted.
    """
    status, body = _get(server, path)
    if status in (401, 403, 404):
        return True
    if status != 200:
        raise OSError(f"GET {path}: HTTP {status}")
    try:
        return bool(msgspec.json.decode(body, type=_Item).metadata.deletion)
    except msgspec.MsgspecError as error:
        raise OSError(f"GET {path}: {error}") from None


def _get(server: Server, path: str) -> tuple[int, bytes]:
    token = (server.account / "token").read_text().strip()
    tls = ssl.create_default_context(cafile=str(server.account / "ca.crt"))
    connection = http.client.HTTPSConnection(server.host, server.port, timeout=LIMIT_S, context=tls)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"GET {path}: {error!r}") from None
    finally:
        connection.close()
