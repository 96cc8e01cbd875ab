from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.core.errors import ConfigError
from loadgen.kube import answers
from loadgen.kube.answers import Call, KubeError

PODS = "/api/v1/namespaces/y/pods"
PROXY = "/api/v1/namespaces/y/pods/p:80/proxy/metrics"
CANNOT = 'nodes is forbidden: User "{user}" cannot list resource "nodes" in API group "" at the cluster scope'


def status(code: int, reason: str, message: str, *causes: str) -> bytes:
    details = {"causes": [{"reason": cause} for cause in causes]} if causes else None
    body: dict[str, Any] = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    return json.dumps(body).encode()


def refusal(code: int, data: bytes, path: str = PODS) -> Exception:
    return answers.refusal(Call("ctx", "https://server", "GET", path), code, data)


def test_an_answer_of_the_api_keeps_its_words_and_says_where() -> None:
    error = refusal(409, status(409, "AlreadyExists", 'pods "a" already\nexists'))
    assert isinstance(error, KubeError)
    assert (error.status, error.reason, error.message) == (409, "AlreadyExists", 'pods "a" already exists')
    assert str(error) == f'https://server (context ctx): GET {PODS}: pods "a" already exists'


@pytest.mark.parametrize(
    "data", [b"404 page not found\n", status(404, "NotFound", "the server could not find the requested resource")]
)
def test_a_missing_object_is_not_a_missing_kind(data: bytes) -> None:
    missing = refusal(404, status(404, "NotFound", 'pods "a" not found'))
    unknown = refusal(404, data, "/apis/cilium.io/v9/ciliumendpoints")
    assert "does not know" not in str(missing)
    assert "/apis/cilium.io/v9/ciliumendpoints: the server does not know this kind of object" in str(unknown)
    assert isinstance(missing, KubeError)
    assert isinstance(unknown, KubeError)
    assert missing.status == unknown.status == 404


@pytest.mark.parametrize("code", [401, 403, 404, 502])
def test_what_a_proxied_server_says_is_its_own(code: int) -> None:
    error = refusal(code, b"its own words", PROXY)
    assert isinstance(error, KubeError)
    assert (error.status, error.message) == (code, "its own words")


@pytest.mark.parametrize("data", [status(401, "Unauthorized", "Unauthorized"), b"<html>log in</html>"])
def test_who_is_not_known_is_told_to_log_in(data: bytes) -> None:
    error = refusal(401, data)
    assert isinstance(error, ConfigError)
    assert "context ctx: the server does not accept its credentials (401)" in str(error)


@pytest.mark.parametrize(
    ("message", "causes", "says"),
    [
        (
            CANNOT.format(user="x"),
            (),
            "user x may not list nodes in the whole cluster (403): bind it to a ClusterRole",
        ),
        (
            CANNOT.format(user="system:anonymous"),
            (),
            "its user has no credentials, so the server takes it for anonym",
        ),
        ('pods "a" is forbidden: violates PodSecurity "restricted:latest"', (), 'forbidden (403): pods "a" is forb'),
        ("it is being terminated", ("NamespaceTerminating",), "being terminated; wait until it is gone, then run"),
    ],
)
def test_a_403_says_whose_no_it_is(message: str, causes: tuple[str, ...], says: str) -> None:
    error = refusal(403, status(403, "Forbidden", message, *causes))
    assert isinstance(error, ConfigError)
    assert says in str(error)
    assert "context ctx" in str(error)
    assert ("manifests/rbac.yaml" in str(error)) == ("bind it" in says)
