from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loadgen.core.errors import ConfigError
from loadgen.core.model import Bpf
from loadgen.kube import hostchecks
from loadgen.kube.hostchecks import EngineInfo, Plan
from tests.kube.shelltools import tool


def state(features: tuple[hostchecks.Feature, ...]) -> dict[str, str]:
    return {feature.name: feature.state for feature in features}


def test_everything_that_is_missing_is_said_at_once(tools: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        asyncio.run(hostchecks.require("cilium"))
    for name in ("docker", "kind", "helm"):
        assert f"{name}: not found on PATH (" in str(raised.value)
    with pytest.raises(ConfigError) as raised:
        asyncio.run(hostchecks.require("model"))
    assert "helm" not in str(raised.value)


def test_a_machine_that_has_it_all(tools: Path) -> None:
    tool(tools, "docker", 'echo \'{"ServerVersion": "28.2.2", "CgroupVersion": "2"}\'')
    tool(tools, "kind", 'test "$1" = version && echo "kind v0.33.0 go1.26.8 linux/amd64" || echo other')
    tool(tools, "helm", "echo v3.19.5+g1234567")
    plan = Plan.of("default", name="mine", cgroup_v2=True, images=("kindest/node:v1.34.0",), tables=Bpf(1024, 1024))
    found = state(asyncio.run(hostchecks.probe_all(plan=plan)))
    assert {name: found[name] for name in ("docker", "cgroups", "kind", "helm", "cluster name", "images")} == dict(
        docker="ok", cgroups="ok", kind="ok", helm="ok", **{"cluster name": "ok"}, images="ok"
    )
    assert asyncio.run(hostchecks.kind_version()) == "v0.33.0"


@pytest.mark.parametrize(
    ("name", "says", "why"),
    [
        ("docker", '{"ServerVersion": "19.3.1"}', "19.3.1 is older than 20.10"),
        ("kind", "kind v0.19.0 go1.20", "0.19.0 is older than 0.20"),
        ("helm", "v2.17.0+ga690bad", "2.17.0 is older than 3.8"),
        ("helm", "who knows", "`helm version` says 'who knows'"),
    ],
)
def test_what_is_too_old(tools: Path, name: str, says: str, why: str) -> None:
    tool(tools, name, f"echo '{says}'")
    found = {feature.name: feature for feature in asyncio.run(hostchecks.probe_all())}
    assert (found[name].state, found[name].why) == ("missing", why)
    assert found[name].remedy


def test_an_engine_that_does_not_answer(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tools, "docker", "echo 'Cannot connect to the Docker daemon at unix:///x. Is it running?' >&2; exit 1")
    found = asyncio.run(hostchecks.probe_all())[0]
    assert (found.state, found.remedy) == ("missing", "start its daemon; see DOCKER_HOST")
    assert "Cannot connect" in found.why
    monkeypatch.setattr(hostchecks, "ANSWER_LIMIT_S", 0.3)
    tool(tools, "docker", "while :; do :; done")
    assert asyncio.run(hostchecks.probe_all())[0].why == "no answer within 0.3 s"


def test_a_cluster_of_that_name(tools: Path) -> None:
    tool(tools, "docker", 'echo \'{"ServerVersion": "28.2.2"}\'')
    tool(tools, "kind", 'test "$1" = version && echo v0.33.0 || echo "loadgen other"')
    with pytest.raises(ConfigError, match=r"there is a kind cluster loadgen already .*loadgen down"):
        asyncio.run(hostchecks.require("model", Plan(cni="model", name="loadgen")))


def test_old_cgroups_are_told_only_where_they_matter(tools: Path) -> None:
    tool(tools, "docker", 'echo \'{"ServerVersion": "28.2.2", "CgroupVersion": "1"}\'')
    assert "cgroups" not in state(asyncio.run(hostchecks.probe_all()))
    assert state(asyncio.run(hostchecks.probe_all(plan=Plan(cgroup_v2=True))))["cgroups"] == "missing"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"ServerVersion": "28.2.2", "CgroupVersion": "2"}', EngineInfo("28.2.2", True)),
        ('{"host": {"cgroupVersion": "v1"}, "version": {"Version": "4.3.1"}}', EngineInfo("4.3.1", False)),
        ("{}", EngineInfo("", None)),
    ],
)
def test_docker_and_podman_say_it_in_their_own_words(text: str, found: EngineInfo) -> None:
    assert EngineInfo.parse(text) == found


# --- images -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("kindest/node:v1.34.0", "registry-1.docker.io"),
        ("busybox", "registry-1.docker.io"),
        ("docker.io/kindest/node:v1", "registry-1.docker.io"),
        ("quay.io/cilium/cilium:v1.16.19@sha256:00", "quay.io"),
        ("localhost/mine:1", "localhost"),
        ("host:5000/mine:1", "host:5000"),
    ],
)
def test_where_an_image_would_come_from(image: str, registry: str) -> None:
    assert hostchecks.registry_of(image) == registry


def test_images_that_nobody_can_bring(tools: Path) -> None:
    tool(tools, "docker", 'test "$1 $2 $3" = "image inspect here:1"')

    async def reach(registry: str) -> bool:
        return registry == "quay.io"

    def asked(*images: str) -> hostchecks.Feature:
        return asyncio.run(hostchecks.images(images, reach))

    assert asked("here:1").state == "ok"
    assert asked("here:1", "quay.io/a/b:1").why == "1 of 2 will be pulled"
    lost = asked("here:1", "quay.io/a/b:1", "kindest/node:v1.34.0")
    assert (lost.state, lost.why) == (
        "missing",
        "kindest/node:v1.34.0: not here, and registry-1.docker.io is out of reach",
    )
    assert "--bundle" in lost.remedy


def test_reaching_a_registry(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[bool]:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        found = [await hostchecks.reachable(f"127.0.0.1:{port}")]
        server.close()
        await server.wait_closed()
        found.append(await hostchecks.reachable(f"127.0.0.1:{port}"))
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
        return [*found, await hostchecks.reachable(f"127.0.0.1:{port}")]

    assert asyncio.run(main()) == [True, False, True]


# --- the kernel's -----------------------------------------------------------------------------------------------


def test_memory_grows_with_nodes_tables_and_families() -> None:
    small = Plan(tables=Bpf(ct_tcp_max=1024, ct_any_max=1024))
    assert Plan(cni="none").memory() < small.memory() < Plan().memory() < Plan(families=2).memory()
    seed = Plan(workers=1, tables=Bpf(ct_tcp_max=16_777_216, ct_any_max=1024))
    # 2.1 to 2.3 GiB a table on each of two nodes, and what everything else takes.
    assert 4.2 * 2**30 < seed.memory() - Plan(workers=1, tables=Bpf(1024, 1024)).memory() < 4.6 * 2**30
    assert hostchecks.memory(seed, available=4 << 30).state == "missing"
    assert hostchecks.memory(seed, available=16 << 30).state == "ok"


def test_a_plan_knows_the_topology(tmp_path: Path) -> None:
    assert (Plan.of("default").workers, Plan.of("default").families) == (2, 1)
    assert Plan.of("dual-stack").families == 2
    own = tmp_path / "own.yaml"
    own.write_text("kind: Cluster")
    assert Plan.of(str(own)).workers == 0
    own.write_text("nodes: 5")
    with pytest.raises(ConfigError, match=r"own\.yaml: no configuration of kind's"):
        Plan.of(str(own))


@pytest.mark.parametrize(
    ("instances", "watches", "state"),
    [("128", "524288", "missing"), ("8192", "524288", "ok"), ("8192", "8192", "missing"), ("x", "1", "unknown")],
)
def test_inotify(tmp_path: Path, instances: str, watches: str, state: str) -> None:
    (tmp_path / "max_user_instances").write_text(instances)
    (tmp_path / "max_user_watches").write_text(watches)
    found = hostchecks.inotify(tmp_path)
    assert found.state == state
    assert ("sysctl -w" in found.remedy) == (state == "missing")
