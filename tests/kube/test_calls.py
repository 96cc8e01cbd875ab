from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadgen.core.errors import HarnessError
from loadgen.kube import calls as module
from loadgen.kube.api import KubeApi
from loadgen.kube.calls import ChurnCalls
from tests.kube.apiserver import status, talk


def ask(tmp_path: Path, answer: Any, call: Callable[[ChurnCalls], Awaitable[Any]]) -> Any:
    """`call`, while the server answers everything with `answer`, or with each of a list in turn."""
    answers = answer if isinstance(answer, list) else None

    async def handler(request: web.Request) -> web.StreamResponse:
        now = answers.pop(0) if answers else answer
        return status(now, "Reason", "why") if isinstance(now, int) else web.json_response(now)

    async def conversation(api: KubeApi) -> Any:
        return await call(ChurnCalls(api, "x", "a=b"))

    return talk(tmp_path, handler, conversation)


@pytest.mark.parametrize(
    ("answer", "limit"),
    [
        ({"kubeletconfig": {"runtimeRequestTimeout": "2m0s"}}, 240.0),
        ({"kubeletconfig": {"runtimeRequestTimeout": "soon"}}, None),
        ({}, None),
        (403, None),
        (404, None),
    ],
)
def test_the_kubelets_longest_attempt(tmp_path: Path, answer: Any, limit: float | None) -> None:
    assert ask(tmp_path, answer, lambda calls: calls.longest_attempt_s("n")) == limit


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, ""),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}},
         "NodeStatusUnknown"),
        ({"status": {"conditions": [{"type": "Ready", "status": "False", "message": "CNI is not ready"}]}},
         "CNI is not ready"),
        (403, ""),
        (404, ""),
    ],
)  # fmt: skip
def test_whether_the_node_is_ready(tmp_path: Path, answer: Any, trouble: str) -> None:
    assert ask(tmp_path, answer, lambda calls: calls.node_trouble("n")) == trouble


def test_what_is_left_is_counted(tmp_path: Path) -> None:
    pods = {"items": [{"metadata": {"name": name}} for name in "abc"]}
    assert ask(tmp_path, pods, lambda calls: calls.count_left()) == 3
    assert ask(tmp_path, pods, lambda calls: calls.any_left()) is True
    assert ask(tmp_path, {"items": []}, lambda calls: calls.any_left()) is False
    with pytest.raises(HarnessError, match="cannot list pods: "):
        ask(tmp_path, 404, lambda calls: calls.any_left())


def test_a_server_that_stays_broken_is_given_up_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INSIST_S", 0.1)
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    with pytest.raises(HarnessError, match=r"cannot create churn-a-0: .*why"):
        ask(tmp_path, 500, lambda calls: calls.create(calls.pods, "churn-a-0", b"{}"))
    ask(tmp_path, [500, {}], lambda calls: calls.delete(f"{calls.pods}/churn-a-0"))


def test_calls_that_are_cancelled_end_at_once(tmp_path: Path) -> None:
    async def call(calls: ChurnCalls) -> bool:
        work = asyncio.create_task(calls.create(calls.pods, "churn-a-0", b"{}"))
        await asyncio.sleep(0)
        work.cancel()
        return (await asyncio.gather(work, return_exceptions=True))[0].__class__ is asyncio.CancelledError

    assert ask(tmp_path, 500, call)
