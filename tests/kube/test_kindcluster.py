from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kube import kindcluster
from loadgen.kube.kindcluster import KindCluster
from loadgen.kube.tools import Done
from tests.kube.binaries import binary


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """`programs("kind", script)` puts one first on PATH; it adds its arguments to the file that is returned."""
    folder, calls = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("KIND_EXPERIMENTAL_PROVIDER", raising=False)

    def put(name: str, script: str) -> Path:
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n{script}\n')
        (folder / name).chmod(0o755)
        return calls

    return put


ENTRIES = "{name: kind-x}"
MAKES = f"""
while [ $# -gt 1 ]; do [ "$1" = --kubeconfig ] && config=$2; shift; done
[ "$config" ] && echo 'clusters: [{ENTRIES}]
contexts: [{ENTRIES}]
users: [{ENTRIES}]
current-context: kind-x' > "$config"
exit 0
"""


def test_a_cluster_is_made_and_its_context_is_there_but_not_current(
    programs: Callable[[str, str], Path], tmp_path: Path
) -> None:
    calls = programs("kind", MAKES)
    asyncio.run(KindCluster("x").create("default", image="kindest/node:v1@sha256:00"))
    found = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    assert ([context["name"] for context in found["contexts"]], found.get("current-context")) == (["kind-x"], None)
    created = calls.read_text().splitlines()[-1]
    assert created.startswith(f"kind create cluster --name x --config {kindcluster.CONFIGS / 'default.yaml'} ")
    assert created.endswith("--image kindest/node:v1@sha256:00")
    assert list(tmp_path.glob("loadgen-kind-*")) == []
    asyncio.run(KindCluster("x").delete())
    assert yaml.safe_load((tmp_path / "kubeconfig").read_text())["contexts"] == []


def test_a_cluster_that_is_there_is_not_touched(programs: Callable[[str, str], Path]) -> None:
    calls = programs("kind", 'test "$2" = clusters && echo x')
    with pytest.raises(ConfigError, match="there is a kind cluster x already"):
        asyncio.run(KindCluster("x").create("default"))
    assert calls.read_text() == "kind get clusters\n"


FAILS = """
test "$1" = get && exit 0
test "$1" = delete && exit 0
echo 'Creating cluster "x" ...'
echo 'ERROR: failed to create cluster: failed to pull image "kindest/node:v9": exit status 1' >&2
echo 'Command Output: many lines' >&2
exit 1
"""


def test_what_was_made_before_it_failed_goes_and_what_kind_said_stays(
    programs: Callable[[str, str], Path], tmp_path: Path
) -> None:
    calls = programs("kind", FAILS)
    with pytest.raises(ConfigError) as raised:
        asyncio.run(KindCluster("x").create("default"))
    said = str(raised.value)
    assert "\n" not in said
    assert said.startswith("kind could not make cluster x: its node image cannot be pulled (failed to pull image")
    log = Path(said.rpartition(" ")[2])
    assert "Command Output: many lines" in log.read_text()
    deleted = [line for line in calls.read_text().splitlines() if line.startswith("kind delete cluster --name x")]
    assert len(deleted) == 1
    assert not (tmp_path / "kubeconfig").exists()


def test_a_ctrl_c_deletes_what_was_begun(programs: Callable[[str, str], Path], tmp_path: Path) -> None:
    pipe = tmp_path / "begun"
    os.mkfifo(pipe)
    calls = programs("kind", f'test "$1" = create || exit 0; echo > {pipe}; sleep 600')

    async def main() -> None:
        task = asyncio.create_task(KindCluster("x").create("default"))
        await asyncio.to_thread(pipe.read_text)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [line.split()[1] for line in calls.read_text().splitlines()] == ["get", "create", "delete", "get"]
    assert list(tmp_path.glob("loadgen-kind-*")) == []


def test_nodes_that_come_up_late_are_deleted_too(programs: Callable[[str, str], Path], tmp_path: Path) -> None:
    """An engine that was told to make a container makes it, even when kind has been ended in between."""
    late = tmp_path / "late"
    late.touch()
    calls = programs("kind", f'test "$2" = nodes && test -e {late} && rm {late} && echo x-worker; exit 0')
    asyncio.run(KindCluster("x").delete())
    assert [line.split()[1] for line in calls.read_text().splitlines()] == ["delete", "get", "delete", "get"]
    programs("kind", 'test "$2" = nodes && echo x-worker; exit 0')
    with pytest.raises(HarnessError, match=r"could not delete cluster x: .*; try: kind delete cluster --name x"):
        asyncio.run(KindCluster("x").delete())


def test_images_get_in_by_kind_or_by_an_archive(
    programs: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs("kind", "")
    programs("docker", 'test "$3" != nobody:1')
    calls = programs("podman", "")
    asyncio.run(KindCluster("x").load_image("mine:1"))
    with pytest.raises(ConfigError, match=r"docker has no image nobody:1; make it: docker build -t nobody:1 \."):
        asyncio.run(KindCluster("x").load_image("nobody:1"))
    monkeypatch.setenv("KIND_EXPERIMENTAL_PROVIDER", "podman")
    asyncio.run(KindCluster("x").load_image("mine:1"))
    said = calls.read_text().splitlines()
    assert said[:2] == ["docker image inspect mine:1", "kind load docker-image mine:1 --name x"]
    assert said[2] == "docker image inspect nobody:1"
    assert said[3] == "podman image inspect mine:1"
    assert said[4].startswith("podman save -o ")
    assert said[5].startswith("kind load image-archive ")


def test_logs_that_cannot_be_had_are_no_failure_of_their_own(
    programs: Callable[[str, str], Path], tmp_path: Path
) -> None:
    programs("kind", 'test "$5" = y || { echo "ERROR: unknown cluster \\"x\\"" >&2; exit 1; }')
    assert asyncio.run(KindCluster("x").export_logs(tmp_path)) == 'kind export logs: unknown cluster "x"'


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('ERROR: failed to create cluster: node(s) already exist for a cluster with the name "x"', "already exist"),
        ("ERROR: unable to decode config: yaml: line 3: field foo not found in type v1alpha4.Cluster", "field foo"),
        ("ERROR: failed to list clusters\nCannot connect to the Docker daemon at unix:///x.", "set DOCKER_HOST"),
        ("ERROR: failed to create cluster: could not find a log line that matches", "max_user_instances"),
        ("docker: unable to apply caps: operation not permitted\nERROR: command failed", "--privileged asks for"),
        ("ERROR: failed to create cluster: failed to init node with kubeadm: command failed", "does not start on"),
        ("ERROR: something new", "something new"),
    ],
)
def test_kinds_own_words_become_one_line(said: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KIND_EXPERIMENTAL_PROVIDER", raising=False)
    found = kindcluster.explain(Done(1, "", said))
    assert told in found
    assert "\n" not in found


def test_topologies_are_found_by_name_or_as_files(tmp_path: Path) -> None:
    assert kindcluster.topology_file("default").name == "default.yaml"
    own = tmp_path / "own.yaml"
    own.write_text("kind: Cluster")
    assert kindcluster.topology_file(str(own)) == own
    with pytest.raises(
        ConfigError, match=r"--kind-config nope: neither a file nor one of default, dns-race, dual-stack"
    ):
        kindcluster.topology_file("nope")
    with pytest.raises(ConfigError):
        kindcluster.topology_file("versions")


@pytest.mark.parametrize("path", kindcluster.topologies().values(), ids=lambda path: path.stem)
def test_every_topology_says_what_it_is_for_and_turns_on_what_is_measured(path: Path) -> None:
    text = path.read_text()
    found = yaml.safe_load(text)
    assert text.startswith(("# For", "# As"))
    assert [node["role"] for node in found["nodes"]] == ["control-plane", "worker", "worker"]
    assert 'address = "0.0.0.0:1338"' in found["containerdConfigPatches"][0]
    assert set(found) == {"kind", "apiVersion", "nodes", "networking", "containerdConfigPatches"}


@pytest.mark.parametrize(
    ("name", "networking"),
    [
        ("default", {"disableDefaultCNI": True}),
        ("dns-race", {"disableDefaultCNI": True, "kubeProxyMode": "iptables"}),
        ("nftables", {"kubeProxyMode": "nftables"}),
        ("kube-proxy-free", {"disableDefaultCNI": True, "kubeProxyMode": "none"}),
        ("dual-stack", {"disableDefaultCNI": True, "ipFamily": "dual"}),
        ("own-cni", {"kubeProxyMode": "iptables"}),
    ],
)
def test_what_the_topologies_differ_in(name: str, networking: dict[str, object]) -> None:
    assert yaml.safe_load(kindcluster.topology_file(name).read_text())["networking"] == networking


# An engine that has the image and can make nothing: what kind asks of it before and after it has read a topology.
NO_NETWORKS = """
case "$1" in
info) echo '{"CgroupVersion": "2", "MemoryLimit": true, "PidsLimit": true, "CPUShares": true}' ;;
ps|version|inspect) ;;
*) echo "nothing can be made" >&2; exit 1 ;;
esac
"""


def kinds_answer(programs: Callable[[str, str], Path], config: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the real kind."""
    monkeypatch.setenv("PATH", str(Path(binary("kind")).parent), prepend=":")
    programs("docker", NO_NETWORKS)
    monkeypatch.setenv("PATH", str(Path(os.environ["KUBECONFIG"]).parent / "bin"), prepend=":")
    with pytest.raises(ConfigError) as raised:
        asyncio.run(KindCluster("x").create(str(config), image="kindest/node:none"))
    return str(raised.value)


@pytest.mark.parametrize("path", kindcluster.topologies().values(), ids=lambda path: path.stem)
def test_kind_itself_takes_every_topology(
    programs: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    assert "failed to ensure docker network" in kinds_answer(programs, path, monkeypatch)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("foo: bar", "no configuration of kind's: .*field foo not found in type v1alpha4.Cluster"),
        ("networking: {kubeProxyMode: magic}", "no configuration of kind's: .*invalid kubeProxyMode: magic"),
        ("networking: {ipFamily: ipv5}", "invalid ipFamily: ipv5"),
    ],
)
def test_kind_itself_refuses_what_is_none(
    programs: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, says: str
) -> None:
    config = tmp_path / "own.yaml"
    config.write_text(f"kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\n{line}\n")
    assert re.search(says, kinds_answer(programs, config, monkeypatch))


def test_names_and_engines_that_kind_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="KIND_CLUSTER_NAME=My_Cluster"):
        KindCluster("My_Cluster")
    monkeypatch.setenv("KIND_EXPERIMENTAL_PROVIDER", "lxc")
    with pytest.raises(ConfigError, match="KIND_EXPERIMENTAL_PROVIDER=lxc: kind knows docker, podman"):
        kindcluster.engine()
