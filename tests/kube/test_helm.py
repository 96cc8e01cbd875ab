from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kube import helm
from loadgen.kube.helm import Chart, Release
from loadgen.kube.tools import Done
from tests.kube.binaries import binary

# As Helm 3.19 printed them.
SCHEMA = """Error: UPGRADE FAILED: values don't meet the specifications of the schema(s) in the following chart(s):
cilium:
- at '/conntrackGCInterval': got number, want string
- at '/bpf/ctTcpMax': got string, want null or integer

"""
TEMPLATE = (
    "Error: template: cilium/templates/cilium-configmap.yaml:116:28: executing "
    '"cilium/templates/cilium-configmap.yaml" at <include "validateDuration" .Values.conntrackGCInterval>: error '
    "calling include: template: cilium/templates/_helpers.tpl:96:16: executing "
    '"validateDuration" at <mustDateModify (toString .)>: error calling mustDateModify: time: missing unit in '
    'duration "60"\n\nUse --debug flag to render out invalid YAML\n'
)
FAIL = (
    "Error: execution error at (cilium/templates/cilium-configmap.yaml:71:5): kubeProxyReplacement must be "
    "explicitly set to a valid value (true or false) to continue.\n\nUse --debug flag to render out invalid YAML\n"
)


@pytest.mark.parametrize(
    ("err", "kind", "says"),
    [
        (
            SCHEMA,
            ConfigError,
            "the chart refuses a value: at '/conntrackGCInterval': got number, want string; at '/bpf/ctTcpMax': got",
        ),
        (TEMPLATE, ConfigError, 'refuses a value: conntrackGCInterval: time: missing unit in duration "60"'),
        (FAIL, ConfigError, "refuses a value: kubeProxyReplacement must be explicitly set to a valid value (true or"),
        (
            "Error: chart requires kubeVersion: >= 1.21.0-0 which is incompatible with Kubernetes v1.20.0\n",
            ConfigError,
            "chart requires kubeVersion: >= 1.21.0-0 which is",
        ),
        (
            'Error: looks like "http://x" is not a valid chart repository or cannot be reached: Get "http://x/index"',
            ConfigError,
            "without a network use --bundle",
        ),
        ("Error: repo charts not found\n", ConfigError, "is the chart's path or version right?"),
        ("Error: release: not found\n", HarnessError, "helm upgrade cilium: release: not found (there is no such"),
        ('Error: UPGRADE FAILED: "cilium" has no deployed releases\n', HarnessError, "never deployed; see helm list"),
        (
            "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress\n",
            HarnessError,
            "or one was killed: helm history and helm rollback",
        ),
        ("Error: UPGRADE FAILED: context deadline exceeded\n", HarnessError, "helm history tells the state"),
        ("Error: Kubernetes cluster unreachable: connection refused\n", HarnessError, "cluster unreachable"),
        ("", HarnessError, "helm upgrade cilium: it said nothing"),
    ],
)
def test_complaints_become_one_line_of_the_right_kind(err: str, kind: type[Exception], says: str) -> None:
    failure = helm._failure(["upgrade", "cilium", "chart"], Done(1, "", err))
    assert type(failure) is kind
    assert says in str(failure)
    assert "\n" not in str(failure)


def test_a_chart_is_named_as_helm_wants_it() -> None:
    assert Chart("cilium", "1.16.15", "https://x").arguments() == [
        "cilium", "--version", "1.16.15", "--repo", "https://x",
    ]  # fmt: skip
    assert Chart("./folder").arguments() == ["./folder"]


@pytest.mark.parametrize(
    ("chart", "version"),
    [("cilium-1.16.15", "1.16.15"), ("my-cilium-v1.20.0-pre.1", "1.20.0-pre.1"), ("odd", "")],
)
def test_the_version_of_a_releases_chart(chart: str, version: str) -> None:
    assert Release(chart, 1, "deployed").version == version


# --- with the real helm -----------------------------------------------------------------------------------------


@pytest.fixture
def chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chart:
    """A chart with keys, types and checks like Cilium's."""
    monkeypatch.setenv("PATH", str(Path(binary("helm")).parent), prepend=":")
    place = tmp_path / "cilium"
    (place / "templates").mkdir(parents=True)
    (place / "Chart.yaml").write_text(
        'apiVersion: v2\nname: cilium\nversion: 1.16.19\nkubeVersion: ">= 1.21.0-0"\n', encoding="utf-8"
    )
    (place / "values.yaml").write_text(yaml.safe_dump({"conntrackGCInterval": "", "bpf": {"ctTcpMax": None}}))
    schema = {
        "type": "object",
        "properties": {
            "conntrackGCInterval": {"type": "string"},
            "bpf": {"type": "object", "properties": {"ctTcpMax": {"type": ["null", "integer"]}}},
        },
    }
    (place / "values.schema.json").write_text(json.dumps(schema))
    (place / "templates/config.yaml").write_text(
        """{{- if eq (toString .Values.kubeProxyReplacement) "strict" }}{{ fail "must be true or false" }}{{ end -}}
data:
  interval: {{ $_ := now | mustDateModify (toString .Values.conntrackGCInterval) }}{{ .Values.conntrackGCInterval }}
  tcp: {{ .Values.bpf.ctTcpMax | int | quote }}
  limits: {{ .Values.apiRateLimit | quote }}
"""
    )
    return Chart(str(place))


def rendered(chart: Chart, values: Mapping[str, Any], kubernetes: str = "1.34.0") -> dict[str, Any]:
    return yaml.safe_load(asyncio.run(helm.template(chart, values, kubernetes=kubernetes)))["data"]


def test_values_reach_the_chart_as_they_are(chart: Chart) -> None:
    limits = "endpoint-create=rate-limit:1000/s,rate-burst:4,endpoint-delete=auto-adjust:false"
    values = {"conntrackGCInterval": "12h", "bpf": {"ctTcpMax": 16_777_216}, "apiRateLimit": limits}
    assert rendered(chart, values) == {"interval": "12h", "tcp": "16777216", "limits": limits}


@pytest.mark.parametrize(
    ("values", "kubernetes", "says"),
    [
        ({"conntrackGCInterval": 60}, "1.34.0", "'/conntrackGCInterval': got number, want string"),
        ({"conntrackGCInterval": "60"}, "1.34.0", 'conntrackGCInterval: time: missing unit in duration "60"'),
        ({"conntrackGCInterval": "1m", "bpf": {"ctTcpMax": "abc"}}, "1.34.0", "'/bpf/ctTcpMax': got string"),
        ({"conntrackGCInterval": "1m", "kubeProxyReplacement": "strict"}, "1.34.0", "must be true or false (cilium/"),
        ({"conntrackGCInterval": "1m"}, "1.20.0", "kubeVersion: >= 1.21.0-0 which is incompatible"),
    ],
)
def test_what_the_chart_refuses(chart: Chart, values: dict[str, Any], kubernetes: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        rendered(chart, values, kubernetes)
    assert says in str(raised.value)
    assert str(raised.value).startswith("helm template cilium: ")


def test_a_chart_that_is_not_there(chart: Chart, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is the chart's path or version right"):
        rendered(Chart(str(tmp_path / "nothing")), {})


def test_a_cluster_that_is_not_there(chart: Chart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(HarnessError, match=r'helm history cilium: .*context "nope" does not exist'):
        asyncio.run(helm.Helm("nope", "default").release("cilium"))
