from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadgen.core.errors import HarnessError
from loadgen.kube import saved
from loadgen.kube.api import KubeApi
from loadgen.kube.saved import Saved
from tests.kube.apiserver import status, talk

PATH = "/api/v1/namespaces/mine/configmaps/loadgen-saved"
RESOURCES = {"resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": True}]}


def server(there: dict[str, Any]) -> Any:
    """One ConfigMap, as the API keeps it."""

    async def handler(request: web.Request) -> web.Response:
        if request.path == "/api/v1":
            return web.json_response(RESOURCES)
        assert request.path == PATH
        if request.method == "PATCH":
            there.update(json.loads(await request.read()))
        return web.json_response(there) if there else status(404, "NotFound", request.path)

    return handler


def test_what_was_saved_is_read_by_a_process_that_knows_nothing(tmp_path: Path) -> None:
    there: dict[str, Any] = {}
    settings = {"cilium": '{"config": {"a": "1"}}', "umlaut": "ü\n"}

    async def work(api: KubeApi) -> tuple[Saved | None, Saved | None]:
        before = await saved.read(api, "mine")
        await saved.write(api, "mine", "cilium", settings)
        return before, await saved.read(api, "mine")

    assert talk(tmp_path, server(there), work) == (None, Saved("cilium", settings))
    assert there["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "loadgen"}


@pytest.mark.parametrize(
    "data", [{}, {"saved.json": "garbage"}, {"saved.json": '{"cni": "flannel", "settings": {}}'}]
)
def test_what_cannot_be_understood_is_not_guessed(tmp_path: Path, data: dict[str, str]) -> None:
    with pytest.raises(HarnessError, match="ConfigMap mine/loadgen-saved: not readable as what a run saved"):
        talk(tmp_path, server({"data": data}), lambda api: saved.read(api, "mine"))


def test_an_api_server_that_says_no_is_no_absence(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        return status(500, "InternalError", "etcd is ill")

    with pytest.raises(Exception, match="etcd is ill"):
        talk(tmp_path, handler, lambda api: saved.read(api, "mine"))
