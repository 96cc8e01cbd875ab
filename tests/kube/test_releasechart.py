from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kube import releasechart
from tests.kube.apiserver import status, talk


def record(**chart: Any) -> bytes:
    """As Helm 3 puts it into a Secret, whose own base64 the API adds."""
    text = {"name": "cilium", "info": {}, "chart": {"metadata": {"name": "cilium", "version": "1.16.19"}, **chart}}
    return base64.b64encode(gzip.compress(json.dumps(text).encode()))


def file(name: str, text: str) -> dict[str, str]:
    return {"name": name, "data": base64.b64encode(text.encode()).decode()}


def test_a_chart_is_laid_out_as_it_was(tmp_path: Path) -> None:
    content = record(
        templates=[file("templates/cilium-agent/daemonset.yaml", "{{ .Values.x }}\n")],
        files=[file("README.md", "read me"), file("files/a.json", "{}")],
        values={"bpf": {"ctTcpMax": None}, "x": 1},
        schema=base64.b64encode(b'{"type": "object"}').decode(),
        lock=None,
    )
    place = releasechart.lay_out(content, tmp_path, "Secret")
    assert place == tmp_path / "cilium"
    assert yaml.safe_load((place / "Chart.yaml").read_text()) == {"name": "cilium", "version": "1.16.19"}
    assert yaml.safe_load((place / "values.yaml").read_text()) == {"bpf": {"ctTcpMax": None}, "x": 1}
    assert (place / "values.schema.json").read_text() == '{"type": "object"}'
    assert (place / "templates/cilium-agent/daemonset.yaml").read_text() == "{{ .Values.x }}\n"
    assert (place / "files/a.json").read_text() == "{}"


def test_a_chart_with_next_to_nothing_in_it(tmp_path: Path) -> None:
    place = releasechart.lay_out(record(templates=None, files=None, values=None), tmp_path, "Secret")
    assert sorted(path.name for path in place.iterdir()) == ["Chart.yaml", "values.yaml"]


@pytest.mark.parametrize("content", [b"", b"!", base64.b64encode(b"no gzip"), base64.b64encode(gzip.compress(b"{}"))])
def test_what_is_no_record(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(HarnessError, match="Secret x: not readable as a record of Helm's"):
        releasechart.lay_out(content, tmp_path, "Secret x")


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "templates/../../x", ""])
def test_nothing_is_put_outside(tmp_path: Path, name: str) -> None:
    with pytest.raises(HarnessError, match="would be put outside"):
        releasechart.lay_out(record(files=[file(name, "x")]), tmp_path / "inside", "Secret x")
    assert not [path for path in tmp_path.rglob("*") if path.name in ("passwd", "x")]


def test_a_chart_of_charts_is_refused(tmp_path: Path) -> None:
    metadata = {"name": "umbrella", "dependencies": [{"name": "cilium"}]}
    with pytest.raises(ConfigError, match="chart umbrella has charts of its own, which Helm does not keep"):
        releasechart.lay_out(record(metadata=metadata), tmp_path, "Secret x")


def test_it_is_found_in_the_cluster(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        if request.path == "/api/v1/namespaces/kube-system/secrets/sh.helm.release.v1.cilium.v3":
            return web.json_response({"data": {"release": base64.b64encode(record()).decode()}})
        return status(404, "NotFound", request.path)

    def of(revision: int) -> Path:
        return talk(
            tmp_path, handler, lambda api: releasechart.write(api, "kube-system", "cilium", revision, tmp_path)
        )

    assert (of(3) / "Chart.yaml").is_file()
    with pytest.raises(ConfigError, match=r"no Secret kube-system/sh\.helm\.release\.v1\.cilium\.v4.*HELM_DRIVER"):
        of(4)
