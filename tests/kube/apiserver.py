"""A real HTTP server that speaks the Kubernetes wire format, for what a real API server cannot be made to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from loadgen.kube.api import KubeApi

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Talk = Callable[[KubeApi], Awaitable[Any]]


def kubeconfig(path: Path, server: str, **user: Any) -> str:
    """A kubeconfig with one context, `test`."""
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u", "namespace": "mine"}}],
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return str(path)


def plugin(folder: Path) -> tuple[dict[str, Any], Callable[[], int]]:
    """A kubeconfig's user whose credential plugin gives the tokens t1, t2 and so on; and how many it has given."""
    count, script = folder / "count", folder / "plugin"
    count.write_text("0")
    said = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t%s"}}'
    script.write_text(f"#!/bin/sh\nn=$(($(cat {count}) + 1)); echo $n > {count}\nprintf '{said}' $n\n")
    script.chmod(0o755)
    spec = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(script),
        "interactiveMode": "Never",
    }
    return {"exec": spec}, lambda: int(count.read_text())


def talk(tmp_path: Path, handler: Handler, conversation: Talk, **user: Any) -> Any:
    """What `conversation` returns; the server answers everything by `handler`."""

    async def main() -> Any:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}", **user)
        try:
            async with asyncio.timeout(60), KubeApi.from_kubeconfig("test", config) as api:
                return await conversation(api)
        finally:
            await runner.cleanup()

    return asyncio.run(main())


def status(code: int, reason: str = "", message: str = "", **headers: str) -> web.Response:
    """An answer as the API server makes it when it says no."""
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code, headers=headers)
