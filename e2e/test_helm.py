"""The Cilium adapter on a real cluster: real Helm, a chart with Cilium's names, agents that tell what they run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.ciliumlike import AFTER, BEFORE, CHART, LIMITED, NAMESPACE, Cluster, namespace, ready
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.model import Settings
from loadgen.kube import releasechart, rollout
from loadgen.kube.api import KubeApi
from loadgen.kube.cni.cilium import CiliumCni
from loadgen.kube.cni.none import NoneCni
from loadgen.kube.helm import Chart, Helm


@pytest.fixture
def cluster(plain_cluster: str) -> Iterator[Cluster]:
    with namespace(plain_cluster) as found:
        yield found


@pytest.fixture
def installed(cluster: Cluster) -> Cluster:
    cluster.install("conntrackGCInterval=5m", "bpf.ctTcpMax=131072", "bpf.ctAnyMax=65536")
    return cluster


def test_settings_are_applied_verified_and_put_back(installed: Cluster) -> None:
    was, old = installed.state(), installed.agents()
    assert installed.running() == {"300000000000"}

    async def work(cni: CiliumCni) -> dict[str, str]:
        assert not await cni.ensure("")
        kept = await cni.save()
        await cni.apply(BEFORE)
        facts = await cni.facts()
        assert (facts.name, facts.version) == ("cilium", "1.16.19")
        assert facts.environment["routing"] == "tunnel vxlan"
        assert facts.environment["cilium_from"] == "Helm release cilium"
        fixed, resized = facts.emulated
        assert fixed == "the GC interval is fixed at 12h, in place of an interval that has drifted there"
        assert "4,194,304 (TCP) and 65,536 (other)" in resized
        return kept

    kept = installed.on(work)
    assert installed.config()["conntrack-gc-interval"] == "12h"
    assert installed.config()["bpf-ct-global-tcp-max"] == "4194304"
    assert installed.running() == {"43200000000000"}
    first = installed.agents()
    assert not set(first) & set(old)
    assert sorted(first.values()) == sorted(old.values())

    installed.on(lambda cni: cni.apply(LIMITED))
    limits = (
        "endpoint-create=rate-limit:1000/s,rate-burst:1000,auto-adjust:false,endpoint-delete=parallel-requests:1000"
    )
    assert installed.config()["api-rate-limit"] == limits
    assert installed.config()["conntrack-gc-max-interval"] == "1h"
    installed.on(lambda cni: cni.apply(AFTER))
    assert {"api-rate-limit", "conntrack-gc-max-interval"} & set(installed.config()) == set()
    assert installed.running() == {"60000000000"}

    installed.on(lambda cni: cni.restore(kept))
    assert installed.state() == was
    assert installed.running() == {"300000000000"}
    last = installed.agents()
    installed.on(lambda cni: cni.restore(kept))
    assert (installed.agents(), installed.state()) == (last, was)


def test_settings_that_say_nothing_of_cilium_leave_it_as_it_was(installed: Cluster) -> None:
    was, old = installed.state(), installed.agents()

    async def work(cni: CiliumCni) -> None:
        await cni.save()
        await cni.apply(Settings())
        assert installed.agents() == old
        await cni.apply(AFTER)
        await cni.apply(Settings())
        assert (await cni.facts()).emulated == ()

    installed.on(work)
    assert installed.state() == was
    assert installed.running() == {"300000000000"}


def test_what_was_patched_by_hand_is_there_again_after_the_rollback(installed: Cluster) -> None:
    patch = {"data": {"debug": "true", "conntrack-gc-interval": "6m"}}
    installed.kubectl("patch", "configmap", "cilium-config", "--type", "merge", "-p", json.dumps(patch))
    installed.kubectl("rollout", "restart", "daemonset/cilium")
    installed.on(ready)
    was = installed.config()
    assert installed.running() == {"360000000000"}

    async def work(cni: CiliumCni) -> None:
        kept = await cni.save()
        await cni.apply(AFTER)
        await cni.restore(kept)

    installed.on(work)
    assert installed.config() == was
    assert installed.running() == {"360000000000"}


def test_a_config_map_that_helm_does_not_own_is_patched(installed: Cluster) -> None:
    installed.kubectl("delete", "secret", "-l", "owner=helm,name=cilium")
    was, template = installed.config(), installed.template()

    async def work(cni: CiliumCni) -> dict[str, str]:
        kept = await cni.save()
        await cni.apply(LIMITED)
        assert installed.config()["conntrack-gc-interval"] == "1m"
        await cni.apply(BEFORE)
        assert installed.running() == {"43200000000000"}
        assert "api-rate-limit" not in installed.config()
        return kept

    kept = installed.on(work)
    installed.on(lambda cni: cni.restore(kept))
    assert (installed.config(), installed.template()) == (was, template)
    assert installed.running() == {"300000000000"}


def test_a_chart_that_restarts_its_pods_by_itself_is_not_restarted_twice(cluster: Cluster) -> None:
    cluster.install("conntrackGCInterval=5m", "rollOutCiliumPods=true")
    was = cluster.state()

    async def work(cni: CiliumCni) -> None:
        kept = await cni.save()
        await cni.apply(AFTER)
        assert rollout.MARK not in json.dumps(cluster.template())
        assert cluster.running() == {"60000000000"}
        await cni.restore(kept)

    cluster.on(work)
    assert cluster.state() == was
    assert cluster.running() == {"300000000000"}


def test_agents_that_are_only_restarted_by_hand_are_restarted_one_by_one(cluster: Cluster) -> None:
    cluster.install("conntrackGCInterval=5m", "updateStrategy.type=OnDelete")
    was, old = cluster.state(), cluster.agents()

    async def work(cni: CiliumCni) -> None:
        kept = await cni.save()
        await cni.apply(AFTER)
        assert cluster.running() == {"60000000000"}
        assert not set(cluster.agents()) & set(old)
        await cni.restore(kept)

    cluster.on(work)
    assert cluster.state() == was
    assert cluster.running() == {"300000000000"}


def test_agents_that_show_less_are_held_to_the_files_that_they_were_started_with(cluster: Cluster) -> None:
    cluster.install("shows=false")
    cluster.on(lambda cni: cni.apply(LIMITED))
    assert cluster.running() == set()


def test_an_agent_that_runs_with_something_else_is_found_out(cluster: Cluster) -> None:
    cluster.install("deaf=true")
    with pytest.raises(HarnessError) as raised:
        cluster.on(lambda cni: cni.apply(AFTER))
    said = str(raised.value)
    assert "agents run with other settings than asked, although restarted: cilium-" in said
    assert "ConntrackGCInterval 420000000000 instead of 1m" in said
    assert f"`loadgen clean --context {cluster.context}`" in said
    assert all(node in said for node in cluster.agents().values())


def test_an_agent_that_dies_is_told_with_its_last_words_and_put_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.install("conntrackGCInterval=5m", "dies=12h")
    was = cluster.state()
    monkeypatch.setattr(rollout, "CRASHES", 1)

    async def work(cni: CiliumCni) -> None:
        kept = await cni.save()
        with pytest.raises(HarnessError) as raised:
            await cni.apply(BEFORE)
        said = str(raised.value)
        assert "of 2 pods are new and Ready" in said
        assert 'level=fatal msg="this interval is the end of me"' in said
        assert "its settings have been changed, and not all of its agents run with them" in said
        await cni.restore(kept)

    cluster.on(work)
    assert cluster.state() == was
    assert cluster.running() == {"300000000000"}


def test_what_the_chart_refuses_changes_nothing(installed: Cluster) -> None:
    was, old = installed.state(), installed.agents()

    async def work(cni: CiliumCni) -> None:
        helm = Helm(installed.context, NAMESPACE)
        with pytest.raises(
            ConfigError, match=r"the chart refuses a value.*/conntrackGCInterval.*got number, want string"
        ):
            await helm.upgrade("cilium", Chart(str(CHART)), {"conntrackGCInterval": 60})
        with pytest.raises(HarnessError, match=r"helm rollback cilium: .*(not found|99)"):
            await helm.rollback("cilium", 99)
        with pytest.raises(HarnessError, match=r"helm history nothing: .*there is no such release"):
            await helm.history("nothing")

    installed.on(work)
    assert (installed.state(), installed.agents()) == (was, old)


def test_the_chart_comes_out_of_the_release_as_it_went_in(installed: Cluster, tmp_path: Path) -> None:
    async def main() -> Path:
        async with KubeApi.from_kubeconfig(installed.context) as api:
            return await releasechart.write(api, NAMESPACE, "cilium", 1, tmp_path)

    place = asyncio.run(main())
    made = {path.relative_to(place): path for path in place.rglob("*") if path.is_file()}
    assert set(made) == {path.relative_to(CHART) for path in CHART.rglob("*") if path.is_file()}
    for name in ("templates/config.yaml", "templates/daemonset.yaml", "values.schema.json"):
        assert (place / name).read_text() == (CHART / name).read_text()
    sets = ("--kube-version", "1.34.0", "--set", "conntrackGCInterval=60s")
    assert installed.helm("template", "x", str(place), *sets) == installed.helm("template", "x", str(CHART), *sets)


def test_a_history_that_was_cut_short_comes_back_by_its_values(installed: Cluster) -> None:
    was = installed.state()

    async def work(cni: CiliumCni) -> None:
        kept = await cni.save()
        await cni.apply(AFTER)
        installed.kubectl("delete", "secret", "sh.helm.release.v1.cilium.v1")
        await cni.restore(kept)

    installed.on(work)
    assert installed.state() == was
    assert installed.running() == {"300000000000"}


def test_who_is_not_well_is_told_before_anything_is_changed(installed: Cluster) -> None:
    installed.install("dies=12h", "conntrackGCInterval=5m")
    installed.kubectl(
        "patch", "configmap", "cilium-config", "--type", "merge", "-p", '{"data":{"conntrack-gc-interval":"12h"}}'
    )
    name = installed.kubectl("get", "pods", "-l", "k8s-app=cilium", "-o", "name").split()[0]
    installed.kubectl("delete", name)
    with pytest.raises(ConfigError, match="1 of 2 Cilium agents are Ready"):
        installed.on(lambda cni: cni.ensure(""))


def test_a_cluster_without_cilium(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="this cluster has no Cilium; use --cni none or --cni model"):
        cluster.on(lambda cni: cni.ensure(""))

    async def main() -> str:
        async with KubeApi.from_kubeconfig(cluster.context) as api:
            return (await NoneCni(api).facts()).environment["network"]

    assert "cilium" not in asyncio.run(main())


def test_where_an_agents_metrics_are(installed: Cluster) -> None:
    uid, node = next(iter(installed.agents().items()))

    async def work(cni: CiliumCni) -> list[str | None]:
        return [await cni.agent_metrics(node), await cni.agent_metrics("nowhere")]

    path, nowhere = installed.on(work)
    assert path is not None
    pod = path.removeprefix(f"/api/v1/namespaces/{NAMESPACE}/pods/").removesuffix(":9962/proxy/metrics")
    assert installed.kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.uid}") == uid
    assert nowhere is None
    installed.install("prometheus.enabled=false")
    assert installed.on(lambda cni: cni.agent_metrics(node)) is None
