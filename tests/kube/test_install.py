"""Our part of a node's CNI folders: what is put in, how it follows the cluster's own, and that nothing stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen.core.errors import ConfigError
from loadgen.kernel import bpf, netns
from loadgen.kernel.bpf import CtDatapath
from loadgen.kernel.links import Links
from loadgen.kube import chain, install
from loadgen.kube.install import Places

KINDNET = {
    "cniVersion": "0.3.1",
    "name": "kindnet",
    "plugins": [
        {"type": "ptp", "ipMasq": False, "ipam": {"type": "host-local"}, "mtu": 1500},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}
NET = {"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "cni0"}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A node's folders, with kindnet's configuration and plugins."""
    for name in ("net.d", "bin", "run", "pins"):
        (tmp_path / name).mkdir()
    for plugin in ("ptp", "portmap", "bridge"):
        (tmp_path / "bin" / plugin).touch()
    (tmp_path / "program").write_bytes(b"\x7fELF one")
    write(tmp_path / "net.d" / "10-kindnet.conflist", KINDNET)
    (tmp_path / "net.d" / "README").touch()
    return Places(
        config=str(tmp_path / "net.d"),
        plugins=str(tmp_path / "bin"),
        run=str(tmp_path / "run"),
        pins=str(tmp_path / "pins"),
        program=str(tmp_path / "program"),
        daemonset="/apis/apps/v1/namespaces/kube-system/daemonsets/loadgen-agent",
    )


def write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def conflist(places: Places) -> Path:
    return Path(places.config) / chain.CONFLIST


def ours(places: Places) -> dict[str, Any]:
    return {
        "type": "loadgen-cni",
        "chained": True,
        "agentSocket": f"{places.run}/cilium.sock",
        "relaySocket": f"{places.run}/cni.sock",
    }


def test_the_clusters_network_keeps_its_name_and_gets_us_at_its_end(places):
    assert len(install.put_in(places)) == 2
    assert json.loads(conflist(places).read_bytes()) == {**KINDNET, "plugins": [*KINDNET["plugins"], ours(places)]}
    plugin = Path(places.plugins) / "loadgen-cni"
    assert (plugin.read_bytes(), plugin.stat().st_mode & 0o777) == (b"\x7fELF one", 0o755)
    assert sorted(path.name for path in Path(places.config).iterdir())[0] == chain.CONFLIST
    assert install.put_in(places) == []


def test_a_single_plugins_configuration_becomes_a_list(places):
    Path(places.config, "10-kindnet.conflist").unlink()
    write(Path(places.config, "5.conf"), NET)
    install.put_in(places)
    found = json.loads(conflist(places).read_bytes())
    assert found == {"cniVersion": "1.0.0", "name": "net", "plugins": [NET, ours(places)]}


def test_of_several_it_takes_the_one_that_the_runtime_would(places):
    write(Path(places.config, "05-other.json"), NET)
    write(Path(places.config, "03-not.backup"), {"plugins": [{"type": "x"}]})
    install.put_in(places)
    assert json.loads(conflist(places).read_bytes())["name"] == "net"


def test_a_chain_that_holds_us_already_holds_us_once(places):
    write(Path(places.config, "10-kindnet.conflist"), {**KINDNET, "plugins": [*KINDNET["plugins"], ours(places)]})
    install.put_in(places)
    types = [plugin["type"] for plugin in json.loads(conflist(places).read_bytes())["plugins"]]
    assert types == ["ptp", "portmap", "loadgen-cni"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("00-a.conf", NET, "00-a.conf comes before 00-loadgen.conflist"),
        ("05-cilium.conflist", {"name": "cilium", "plugins": [{"type": "cilium-cni"}]}, "network is Cilium already"),
        ("05-flannel.conf", {"name": "x", "type": "flannel"}, "bin has no flannel: this node's CNI plugins are"),
        ("05-x.conf", {"name": "x"}, "it names no plugin"),
        ("05-x.conflist", {"name": "x", "plugins": []}, "it names no plugin"),
        ("05-x.conf", [1], "05-x.conf: Expected `object`"),
    ],
)
def test_what_cannot_be_chained_is_said_and_nothing_is_written(places, name, content, says):
    write(Path(places.config, name), content)
    with pytest.raises(ConfigError, match=says):
        install.put_in(places)
    assert not conflist(places).exists()
    assert not Path(places.plugins, "loadgen-cni").exists()


def test_a_shorter_or_longer_configuration_is_written_in_place(places):
    install.put_in(places)
    inode = conflist(places).stat().st_ino
    reader = conflist(places).open("rb")
    for plugins in (KINDNET["plugins"][:1], [*KINDNET["plugins"], {"type": "bridge", "long": "y" * 10_000}]):
        write(Path(places.config, "10-kindnet.conflist"), {**KINDNET, "plugins": plugins})
        assert len(install.put_in(places)) == 1
        reader.seek(0)
        assert json.loads(reader.read())["plugins"] == [*plugins, ours(places)]
        assert install.put_in(places) == []
    reader.close()
    assert conflist(places).stat().st_ino == inode


def test_a_running_plugin_is_replaced_without_being_disturbed(places):
    install.put_in(places)
    plugin = Path(places.plugins, "loadgen-cni")
    with plugin.open("rb") as running:
        Path(places.program).write_bytes(b"\x7fELF two")
        assert install.put_in(places) == [f"{plugin}: installed"]
        assert (running.read(), plugin.read_bytes()) == (b"\x7fELF one", b"\x7fELF two")


def steps(*actions: Callable[[], object]) -> Callable[[], bool]:
    """For follow: one action between two looks, and then the end."""
    left = list(actions)

    def wait() -> bool:
        if not left:
            return True
        left.pop(0)()
        return False

    return wait


def test_it_follows_the_clusters_configuration(places, caplog):
    source = Path(places.config, "10-kindnet.conflist")
    seen = []

    def look() -> None:
        seen.append(json.loads(conflist(places).read_bytes())["name"] if conflist(places).exists() else None)

    install.follow(
        places,
        steps(
            look,
            lambda: write(source, {**KINDNET, "name": "renamed"}),
            look,
            source.unlink,
            look,
            look,
            lambda: write(source, KINDNET),
            look,
        ),
    )
    assert seen == ["kindnet", "renamed", None, None, "kindnet"]
    assert caplog.text.count("has no CNI configuration") == 1


def test_what_is_wrong_is_said_once_and_the_rest_goes_on(places, caplog):
    source = Path(places.config, "10-kindnet.conflist")
    source.write_text("{")
    nothing = lambda: None  # noqa: E731
    install.follow(places, steps(nothing, nothing, lambda: write(source, KINDNET), nothing))
    assert caplog.text.count("10-kindnet.conflist: Input data was truncated") == 1
    assert conflist(places).exists()


@pytest.fixture
def node(netns_factory: Callable[[str], Path]) -> Path:
    """take_out looks at every interface: those of a namespace of its own."""
    return netns_factory("node")


@pytest.mark.kernel
def test_take_out_leaves_what_was_there_before(places, node, lab_dir, netns_factory):
    before = sorted(path.name for path in Path(places.config).parent.rglob("*"))
    pins = lab_dir / "bpf" / "install" / "tc" / "globals"
    places = msgspec.structs.replace(places, pins=str(pins))
    with CtDatapath.load(pins, 4096, 4096) as datapath, Links(node) as links:
        links.veth("veth1", "eth0", netns_factory("pod"))
        netns.call(node, datapath.attach, links.index("veth1"))
        install.put_in(places)
        (Path(places.run) / "endpoints").mkdir()
        (Path(places.run) / "endpoints" / "1.json").touch()
        found = netns.call(node, install.take_out, places)
        assert found == [
            chain.CONFLIST,
            chain.PLUGIN,
            "programs on veth1",
            bpf.TCP_MAP,
            bpf.ANY_MAP,
            "endpoints' state",
        ]
        assert not netns.call(node, bpf.detach, links.index("veth1"))
        assert netns.call(node, install.take_out, places) == []
    assert list((lab_dir / "bpf" / "install").iterdir()) == []
    assert sorted(path.name for path in Path(places.config).parent.rglob("*")) == before


@pytest.mark.kernel
def test_pins_of_others_stay(places, node, lab_dir):
    pins = lab_dir / "bpf" / "others" / "globals"
    with CtDatapath.load(pins, 4096, 4096):
        (pins / bpf.ANY_MAP).rename(pins / "another")
        places = msgspec.structs.replace(places, pins=str(pins))
        assert netns.call(node, install.take_out, places) == [bpf.TCP_MAP]
    assert [pin.name for pin in pins.iterdir()] == ["another"]
    (pins / "another").unlink()


def unknown() -> bool:
    raise OSError("no route to host")


@pytest.mark.kernel
@pytest.mark.parametrize(("going", "stays"), [(lambda: False, True), (unknown, True), (lambda: True, False)])
def test_only_the_end_of_the_daemonset_takes_it_out(places, node, going, stays, caplog):
    install.put_in(places)
    netns.call(node, install.leave, places, going)
    assert conflist(places).exists() is stays
    assert Path(places.plugins, "loadgen-cni").exists() is stays
    assert ("no route to host" in caplog.text) is (going is unknown)


@pytest.mark.kernel
def test_as_a_process(places, node, tmp_path):
    """follow until SIGTERM, which outside of a cluster leaves all there; remove, which the next start forgets."""
    config = tmp_path / "places.json"
    config.write_bytes(msgspec.json.encode(places))

    def command(*words: str) -> list[str]:
        return [sys.executable, "-m", "loadgen.kube.install", *words, str(config)]

    def run(word: str) -> subprocess.CompletedProcess[str]:
        return netns.call(node, subprocess.run, command(word), capture_output=True, text=True, check=False)

    process = subprocess.Popen(command("follow"), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "installed" in process.stderr.readline()
    assert "10-kindnet.conflist with loadgen-cni behind it" in process.stderr.readline()
    assert run("show").stdout.split() == ["ptp", "portmap", "loadgen-cni"]
    assert run("remove").stdout.split() == [chain.CONFLIST, chain.PLUGIN]
    write(Path(places.config, "10-kindnet.conflist"), {**KINDNET, "name": "renamed"})
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0
    assert not conflist(places).exists()
    assert "configuration stays" in process.stderr.read()
    os.environ.pop("KUBERNETES_SERVICE_HOST", None)
    install.follow(places, lambda: True)
    assert conflist(places).exists()


def test_wrong_use(places, tmp_path, caplog):
    assert install.main(["install", "dance", "x"]) == 4
    assert install.main(["install", "show", str(tmp_path / "none")]) == 4
    assert "none: [Errno 2] No such file" in caplog.text
