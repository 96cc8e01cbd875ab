"""What the API server says when it says no, as exceptions whose one line tells what to do about it."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from loadgen.core.errors import ConfigError, HarnessError


class KubeError(HarnessError):
    """An answer that is not a success: `status` is HTTP's, `reason` and `message` are the API's."""

    def __init__(self, status: int, reason: str, message: str, call: str = "") -> None:
        text = message or reason or f"HTTP {status}"
        super().__init__(f"{call}: {text}" if call else text)
        self.status, self.reason, self.message = status, reason, message


class Cause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class Details(msgspec.Struct, frozen=True):
    causes: tuple[Cause, ...] = ()


class Status(msgspec.Struct, frozen=True):
    """The API's object of kind Status."""

    kind: str = ""
    status: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: Details | None = None

    def cause(self, reason: str) -> Cause | None:
        causes = self.details.causes if self.details else ()
        return next((cause for cause in causes if cause.reason == reason), None)


def read(data: bytes) -> Status | None:
    """None: the answer is not the API server's own, but somebody's behind or before it."""
    try:
        said = msgspec.json.decode(data, type=Status)
    except msgspec.DecodeError:
        return None
    return said if said.kind == "Status" else None


class Call(NamedTuple):
    """Which call it was, for messages."""

    context: str
    server: str
    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.server} (context {self.context}): {self.method} {self.path}"


def _proxied(path: str) -> bool:
    """It leads through the API server to somebody else's, who has answers of its own."""
    return "/proxy/" in path


def is_unauthorized(path: str, status: int, data: bytes) -> bool:
    """The API server does not know who we are."""
    return status == 401 and (read(data) is not None or not _proxied(path))


def refusal(call: Call, status: int, data: bytes) -> KubeError | ConfigError:
    """The exception for an answer of 300 and more."""
    said = read(data)
    if is_unauthorized(call.path, status, data):
        return ConfigError(unauthorized(call.context))
    if status == 404 and not _proxied(call.path) and (said is None or said.message == _NO_RESOURCE):
        return KubeError(404, "NotFound", _UNKNOWN_KIND, str(call))
    if said is None:
        text = " ".join(data[:200].decode(errors="replace").split())
        return KubeError(status, "", text, str(call))
    if status == 403:
        return _forbidden(call, said)
    return KubeError(status, said.reason, " ".join(said.message.split()), str(call))


_NO_RESOURCE = "the server could not find the requested resource"
"""Of a group that it knows; of another one it says less (404 page not found)."""
_UNKNOWN_KIND = (
    "the server does not know this kind of object; either it is older or newer than what loadgen was made for, or "
    "the CRD is not installed"
)


def unauthorized(context: str) -> str:
    return (
        f"context {context}: the server does not accept its credentials (401), not even after they were fetched "
        "anew; log in again, or choose another context by --context"
    )


_RBAC = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)


def _forbidden(call: Call, said: Status) -> ConfigError:
    found = _RBAC.search(said.message)
    if found is not None:
        user, verb, resource, group = found.group("user", "verb", "resource", "group")
        namespace = found["namespace"]
        where = f"namespace {namespace}" if namespace else "the whole cluster"
        role = "Role" if namespace else "ClusterRole"
        if user == "system:anonymous":
            return ConfigError(
                f"context {call.context}: its user has no credentials, so the server takes it for anonymous and does "
                f"not let it {verb} {resource} in {where} (403)"
            )
        return ConfigError(
            f"context {call.context}: user {user} may not {verb} {resource} in {where} (403): bind it to a {role} "
            f'with apiGroups: ["{group}"], resources: ["{resource}"], verbs: ["{verb}"]; manifests/rbac.yaml has all '
            "that is needed"
        )
    text = " ".join(said.message.split()) or said.reason
    if said.cause("NamespaceTerminating"):
        return ConfigError(f"{call}: {text}; wait until it is gone, then run again")
    return ConfigError(f"{call}: forbidden (403): {text}")
