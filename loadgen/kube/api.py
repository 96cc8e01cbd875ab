"""A thin client of the Kubernetes API: JSON in and out, time limits, and errors that say what to do.

Paths are the API's own (`/api/v1/namespaces/x/pods`). Objects are JSON values as the server knows them, or msgspec
records of the few fields that are wanted, which is what makes watching hundreds of pods cheap.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal, Self, TypeVar, overload

import msgspec

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kube import exec as remote
from loadgen.kube.answers import KubeError
from loadgen.kube.exec import ExecResult, ExecStream
from loadgen.kube.transport import Ask, Transport

__all__ = ["FIELD_MANAGER", "LIMIT_S", "KubeApi", "KubeError", "PatchStyle"]

T = TypeVar("T")

LIMIT_S = 30.0
FIELD_MANAGER = "loadgen"

PatchStyle = Literal["merge", "strategic", "json", "apply"]
_PATCH_TYPES: dict[PatchStyle, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class _Version(msgspec.Struct, rename="camel"):
    git_version: str


class KubeApi:
    """One cluster, as one context sees it. An async context manager; safe for many tasks at once."""

    def __init__(self, context: str | None = None, kubeconfig: str | None = None) -> None:
        self._transport = Transport(context, kubeconfig)
        self._kinds: dict[tuple[str, str], tuple[str, bool]] = {}
        self.version = ""
        """The server's, once `probe` has asked."""

    @classmethod
    def from_kubeconfig(cls, context: str | None = None, kubeconfig: str | None = None) -> Self:
        """The API of `context`; nothing is read before it is entered."""
        return cls(context, kubeconfig)

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.__aexit__()

    @property
    def context(self) -> str:
        return self._transport.credentials.context

    @property
    def server(self) -> str:
        return self._transport.credentials.server

    @property
    def namespace(self) -> str:
        """The context's default."""
        return self._transport.credentials.namespace

    async def probe(self) -> None:
        """First contact. ConfigError when the cluster cannot be reached or does not let us in."""
        try:
            self.version = (await self.get("/version", _Version)).git_version
        except HarnessError as error:
            raise ConfigError(f"{error}; is the cluster up? --context chooses another") from None

    # --- calls --------------------------------------------------------------------------------------------------

    async def raw(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
        limit_s: float = LIMIT_S,
    ) -> bytes:
        """The answer's body. KubeError for an answer that is a no; HarnessError when there is no answer.

        Both are ConfigErrors where the credentials or their rights are at fault.
        """
        return await self._transport.call(Ask(method, path, body, content_type, params, limit_s))

    def follow(self, path: str, *, silence_s: float, **params: str) -> AsyncGenerator[bytes, None]:
        """Pieces of an answer that goes on (a watch, a log); see Transport.follow."""
        return self._transport.follow(path, params, limit_s=LIMIT_S, silence_s=silence_s)

    def _decode(self, data: bytes, kind: Any, method: str, path: str) -> Any:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            what = self._transport.describe(method, path)
            raise HarnessError(f"{what}: the answer is not the Kubernetes API's: {error}") from None

    # --- objects ------------------------------------------------------------------------------------------------

    @overload
    async def get(self, path: str, kind: None = None, **params: str) -> dict[str, Any]: ...

    @overload
    async def get(self, path: str, kind: type[T], **params: str) -> T: ...

    async def get(self, path: str, kind: type[Any] | None = None, **params: str) -> Any:
        """The object or list at `path`, as JSON or as `kind`."""
        data = await self.raw("GET", path, params=params or None)
        return self._decode(data, Any if kind is None else kind, "GET", path)

    async def text(self, path: str, **params: str) -> str:
        return (await self.raw("GET", path, params=params or None)).decode(errors="replace")

    async def create(self, path: str, item: object) -> dict[str, Any]:
        return self._decode(await self.raw("POST", path, msgspec.json.encode(item)), Any, "POST", path)

    async def patch(self, path: str, patch: object, style: PatchStyle = "merge") -> dict[str, Any]:
        params = {"fieldManager": FIELD_MANAGER}
        if style == "apply":
            params["force"] = "true"
        body = msgspec.json.encode(patch)
        data = await self.raw("PATCH", path, body, content_type=_PATCH_TYPES[style], params=params)
        return self._decode(data, Any, "PATCH", path)

    async def apply(self, item: dict[str, Any], namespace: str | None = None) -> dict[str, Any]:
        """Server-side apply, as field manager `loadgen`. ConfigError for a kind that the server does not know."""
        return await self.patch(await self.path_of(item, namespace), item, "apply")

    async def path_of(self, item: Mapping[str, Any], namespace: str | None = None) -> str:
        """Where an object lives, by asking the server for its kinds."""
        version, kind = item["apiVersion"], item["kind"]
        plural, namespaced = await self._resource(version, kind)
        root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        metadata = item["metadata"]
        if not namespaced:
            return f"{root}/{plural}/{metadata['name']}"
        return f"{root}/namespaces/{metadata.get('namespace') or namespace or 'default'}/{plural}/{metadata['name']}"

    async def _resource(self, version: str, kind: str) -> tuple[str, bool]:
        if (version, kind) not in self._kinds:
            root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
            try:
                found = await self.get(root)
            except KubeError as error:
                if error.status != 404:
                    raise
                raise ConfigError(
                    f"context {self.context}: the server does not know {version}, which {kind} belongs to"
                ) from None
            for resource in found["resources"]:
                if "/" not in resource["name"]:
                    self._kinds[version, resource["kind"]] = (resource["name"], resource["namespaced"])
        try:
            return self._kinds[version, kind]
        except KeyError:
            raise ConfigError(
                f"context {self.context}: the server does not know the kind {kind} of {version}"
            ) from None

    async def delete(self, path: str, *, grace_s: int | None = None, missing_ok: bool = True) -> None:
        """Ask for the deletion; what the object waits for may take longer."""
        params = {"propagationPolicy": "Background"}
        if grace_s is not None:
            params["gracePeriodSeconds"] = str(grace_s)
        try:
            await self.raw("DELETE", path, params=params)
        except KubeError as error:
            if error.status != 404 or not missing_ok:
                raise

    async def delete_collection(self, path: str, selector: str, *, grace_s: int | None = None) -> None:
        """Ask for the deletion of everything at `path` with these labels."""
        params = {"labelSelector": selector, "propagationPolicy": "Background"}
        if grace_s is not None:
            params["gracePeriodSeconds"] = str(grace_s)
        await self.raw("DELETE", path, params=params)

    async def can_i(
        self, verb: str, resource: str, *, group: str = "", namespace: str | None = None, subresource: str = ""
    ) -> bool:
        """Whether our credentials allow it, by the server's own word."""
        attributes = {"verb": verb, "resource": resource, "group": group, "subresource": subresource}
        if namespace:
            attributes["namespace"] = namespace
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        return bool(answer["status"].get("allowed"))

    # --- commands in containers ---------------------------------------------------------------------------------

    async def exec(
        self, pod: str, container: str, argv: list[str], *, namespace: str, stdin: bytes = b"", limit_s: float = 60.0
    ) -> ExecResult:
        """Run a command to its end. HarnessError when it cannot be run or the connection breaks."""
        return await remote.run(self._transport, namespace, pod, container, argv, stdin, limit_s)

    async def stream(self, pod: str, container: str, argv: list[str], *, namespace: str) -> ExecStream:
        """Start a command and talk to it: stdin, stdout, stderr, exit code."""
        return await remote.start(self._transport, namespace, pod, container, argv, stdin=True, limit_s=LIMIT_S)

    # --- servers in pods and on nodes ---------------------------------------------------------------------------

    def pod_proxy(self, namespace: str, pod: str, port: int, path: str) -> str:
        """API path that leads to an HTTP server in a pod."""
        return f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/{path.lstrip('/')}"

    def node_proxy(self, node: str, path: str, port: int | None = None) -> str:
        """API path that leads to the kubelet, or to an HTTP server on `port` of the node."""
        return f"/api/v1/nodes/{node}{f':{port}' if port else ''}/proxy/{path.lstrip('/')}"
