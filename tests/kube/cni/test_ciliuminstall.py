from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from loadgen.core.errors import ConfigError
from loadgen.core.model import ApiLimit, Bpf, Cilium
from loadgen.core.units import Duration
from loadgen.kube import manifests, versions
from loadgen.kube.cni import ciliuminstall, ciliumvalues
from loadgen.kube.cni.ciliuminstall import Node
from loadgen.kube.cni.ciliumvalues import Version
from loadgen.scenarios import loader

DATA = json.loads((Path(__file__).parents[1] / "data" / "cilium-values.json").read_text())
FILES = sorted((manifests.FOLDER / "cilium").glob("*.yaml"))
CHARTS = [release.chart for release in versions.table().cilium.values()]
EVERYTHING = Cilium(
    gc_interval=Duration.parse("60s"),
    gc_max_interval=Duration.parse("1h"),
    bpf=Bpf(ct_tcp_max=16_777_216, ct_any_max=1024),
    api_rate_limit={"endpoint-create": ApiLimit(rate_limit=10)},
)
JSON_TYPES = {str: "string", bool: "boolean", int: "integer", type(None): "null", dict: "object"}


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys; below extraConfig there are no values of the chart's any more."""
    for key, value in values.items():
        if isinstance(value, Mapping) and prefix + key != "extraConfig":
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def exists(where: str, key: str, chart: str) -> bool:
    first, last = DATA[where].get(key, ["9.0.0", "0.0.0"])[:2]
    return Version.parse(first) <= Version.parse(chart) <= Version.parse(last)


@pytest.mark.parametrize("chart", CHARTS)
def test_every_value_that_we_set_exists_in_that_chart_with_that_type(chart: str) -> None:
    found = [leaf for path in FILES for leaf in leaves(yaml.safe_load(path.read_text()))]
    found += [("k8sServiceHost", "10.0.0.1")]
    version = Version.parse(chart)
    typed = version >= ciliumvalues.TYPED_SIZES_SINCE
    found += list(leaves(ciliumvalues.helm(EVERYTHING, version))) + list(leaves(ciliumvalues.helm(Cilium(), version)))
    for key, value in found:
        assert exists("helm", key, chart), f"{key} is no value of chart {chart}"
        if typed:
            assert JSON_TYPES[type(value)] in DATA["helm"][key][2].split(), f"{key}: {value!r} in chart {chart}"


@pytest.mark.parametrize("chart", CHARTS)
def test_every_config_map_key_that_we_write_can_come_from_that_chart(chart: str) -> None:
    keys = {key for key, value in ciliumvalues.config_map(EVERYTHING).items() if value is not None}
    if chart.startswith("1.14."):
        keys -= {ciliumvalues.RATE_LIMIT}  # by extraConfig
    for key in keys | {"prometheus-serve-addr", "kube-proxy-replacement", "ipam", "enable-ipv6"}:
        assert exists("configmap", key, chart), f"{key} is none of chart {chart}"


def test_what_is_not_in_a_chart_is_noticed() -> None:
    assert not exists("helm", "conntrackGcInterval", "1.16.19")
    assert not exists("helm", "apiRateLimit", "1.14.19")
    assert not exists("helm", "conntrackGCMaxInterval", "1.14.2")


def test_no_number_in_a_file_is_printed_otherwise_by_old_charts() -> None:
    values = [value for path in FILES for _, value in leaves(yaml.safe_load(path.read_text()))]
    assert all(value < 1_000_000 for value in values if type(value) is int)


@pytest.mark.parametrize("name", ["chaos", "ct-gc-spiral"])
def test_the_files_for_doing_it_by_hand_are_what_the_scenarios_do(name: str) -> None:
    scenario = loader.load(name)
    for variant in ("before", "after"):
        by_hand = yaml.safe_load((manifests.FOLDER / "cilium" / f"{variant}.yaml").read_text())
        interval = ciliumvalues.fixed_interval(scenario.variants[variant].settings.cilium)
        assert Duration.parse(by_hand["conntrackGCInterval"]) == interval


# --- which files for which cluster ------------------------------------------------------------------------------


def node(name: str, *cidrs: str, control_plane: bool = False) -> Node:
    labels = {"node-role.kubernetes.io/control-plane": ""} if control_plane else {}
    raw = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"podCIDRs": cidrs},
        "status": {
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": "172.18.0.2"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return msgspec.convert(raw, Node)


NODES = [node("c", "10.244.0.0/24", control_plane=True), node("w", "10.244.1.0/24")]


@pytest.mark.parametrize(
    ("nodes", "kube_proxy", "bundled", "names", "values"),
    [
        (NODES, True, False, ["base"], {}),
        (NODES, False, False, ["base", "kube-proxy-free"], {"k8sServiceHost": "172.18.0.2"}),
        (NODES, True, True, ["base", "bundle"], {}),
        ([*NODES, node("x", "10.244.2.0/24", "fd00::/64")], True, False, ["base", "dual-stack"], {}),
    ],
)
def test_files_that_suit_the_cluster(
    nodes: list[Node], kube_proxy: bool, bundled: bool, names: list[str], values: dict[str, str]
) -> None:
    found = ciliuminstall.layers(nodes, kube_proxy=kube_proxy, bundled=bundled)
    assert [path.stem for path in found.files] == names
    assert found.values == values
    assert all(path.is_file() for path in found.files)
    assert all(one.ready for one in nodes)


def test_without_kube_proxy_somebody_has_to_know_the_api_server() -> None:
    with pytest.raises(ConfigError, match="where is the API server"):
        ciliuminstall.layers(NODES[1:], kube_proxy=False, bundled=False)
