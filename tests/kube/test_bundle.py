from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen.core.errors import ConfigError
from loadgen.kube import bundle
from loadgen.kube.bundle import Bundle
from loadgen.kube.kindcluster import KindCluster
from loadgen.kube.versions import Image, Resolved

CHART = b"a chart"
DIGEST = "sha256:" + "ab" * 32
PINS = Resolved(
    node=Image("kindest/node", "v1.34.11", DIGEST),
    kubernetes="1.34.11",
    cilium="1.16.19",
    chart_sha256=hashlib.sha256(CHART).hexdigest(),
    images=(Image("quay.io/cilium/cilium", "v1.16.19", DIGEST),),
)

# An engine with nothing in it: what is pulled is there afterwards, what is saved is its name.
DOCKER = """
there={there}
case "$1 $2" in
"image inspect") for last; do :; done; grep -qx "$last" $there && echo "id-of-$last" | sed 's/@.*//' ;;
"pull "*) echo "$2" >> $there ;;
"tag "*) echo "$3" >> $there ;;
"save "*) echo "$4" > "$3" ;;
"version "*) echo amd64 ;;
"load "*) cat "$3" >> $there ;;
*) exit 9 ;;
esac
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """`programs("docker", script)` puts one first on PATH; it adds its arguments to the file that is returned."""
    folder, calls = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("KIND_EXPERIMENTAL_PROVIDER", raising=False)

    def put(name: str, script: str) -> Path:
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n{script}\n')
        (folder / name).chmod(0o755)
        return calls

    there = tmp_path / "there"
    there.write_text("mine:1\n")
    put("docker", DOCKER.format(there=there))
    put("helm", f'for last; do :; done; printf "{CHART.decode()}" > "$last/cilium-1.16.19.tgz"')
    put("kind", "")
    return put


def collect(out: Path, images: tuple[str, ...] = ("mine:1",), **more: Any) -> Bundle:
    return asyncio.run(bundle.collect(out, more.pop("pins", PINS), "v0.33.0", images, lambda line: None, **more))


def test_what_is_collected_is_what_a_machine_without_a_network_needs(
    programs: Callable[[str, str], Path], tmp_path: Path
) -> None:
    collect(tmp_path / "out")
    found = Bundle.open(tmp_path / "out")
    assert [(archive.tag, archive.place) for archive in found.manifest.images] == [
        ("kindest/node:v1.34.11", "engine"),
        ("quay.io/cilium/cilium:v1.16.19", "nodes"),
        ("mine:1", "nodes"),
    ]
    assert found.manifest.images[0].reference == f"kindest/node:v1.34.11@{DIGEST}"
    assert found.node_image == "kindest/node:v1.34.11"
    assert Path(found.chart.name).read_bytes() == CHART
    assert (found.manifest.cilium, found.manifest.kubernetes) == ("1.16.19", "1.34.11")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [line.split()[2].partition("@")[0] for line in calls if line.startswith("docker pull")] == [
        "kindest/node:v1.34.11",
        "quay.io/cilium/cilium:v1.16.19",
    ]
    helm = next(line for line in calls if line.startswith("helm"))
    assert helm.startswith("helm pull cilium --version 1.16.19 --repo https://helm.cilium.io --destination ")
    assert asyncio.run(found.verify(kind="v0.33.0")) == ()
    assert list(tmp_path.glob(".out-*")) == []


def test_it_is_loaded_where_it_belongs(programs: Callable[[str, str], Path], tmp_path: Path) -> None:
    made = collect(tmp_path / "out")
    calls = tmp_path / "calls"
    calls.write_text("")
    asyncio.run(made.load_node_image())
    asyncio.run(made.load_into(KindCluster("x")))
    assert [line.split()[:3] for line in calls.read_text().splitlines()] == [
        ["docker", "load", "-i"],
        ["kind", "load", "image-archive"],
        ["kind", "load", "image-archive"],
    ]


def test_a_file_that_is_not_what_it_was(programs: Callable[[str, str], Path], tmp_path: Path) -> None:
    made = collect(tmp_path / "out")
    (tmp_path / "out/images/mine-1.tar").write_text("other")
    Path(made.chart.name).unlink()
    with pytest.raises(ConfigError, match=r"cilium-1\.16\.19\.tgz is missing; images/mine-1\.tar has changed; copy"):
        asyncio.run(made.verify(kind="v0.33.0"))


@pytest.mark.parametrize(
    ("asked", "fits"), [(None, True), ("1.16", True), ("v1.16.19", True), ("1.16.15", False), ("1.18", False)]
)
def test_the_bundle_has_one_cilium(
    programs: Callable[[str, str], Path], tmp_path: Path, asked: str | None, fits: bool
) -> None:
    made = collect(tmp_path / "out")
    if fits:
        assert asyncio.run(made.verify(kind="v0.33.0", cilium=asked)) == ()
    else:
        with pytest.raises(ConfigError, match=r"the bundle .* has Cilium 1\.16\.19"):
            asyncio.run(made.verify(kind="v0.33.0", cilium=asked))


def test_another_kind_is_noted_and_another_machine_refused(
    programs: Callable[[str, str], Path], tmp_path: Path
) -> None:
    made = collect(tmp_path / "out")
    assert asyncio.run(made.verify(kind="v0.31.0")) == (
        "the bundle's node image was built for kind v0.33.0, here is v0.31.0",
    )
    programs("docker", "echo arm64")
    with pytest.raises(ConfigError, match="it was made for amd64, this docker runs arm64"):
        asyncio.run(made.verify(kind="v0.33.0"))


def test_a_chart_that_was_changed_on_its_way(programs: Callable[[str, str], Path], tmp_path: Path) -> None:
    programs("helm", 'for last; do :; done; printf "no chart" > "$last/cilium-1.16.19.tgz"')
    with pytest.raises(ConfigError, match=r"chart cilium 1\.16\.19 has SHA-256 \w+, expected was"):
        collect(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


def test_an_image_that_cannot_be_got_leaves_nothing(programs: Callable[[str, str], Path], tmp_path: Path) -> None:
    programs(
        "docker", 'test "$1" != pull || { echo "Error response from daemon: no such host" >&2; exit 1; }; exit 1'
    )
    with pytest.raises(ConfigError, match=r"docker pull kindest/node:v1\.34\.11@\S+: Error response from daemon: no"):
        collect(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


def test_somebody_elses_image_keeps_its_name(programs: Callable[[str, str], Path], tmp_path: Path) -> None:
    (tmp_path / "there").write_text("kindest/node:v1.34.11\n")
    script = DOCKER.format(there=tmp_path / "there").replace("| sed 's/@.*//'", "")
    programs("docker", script)
    with pytest.raises(ConfigError, match=r"docker has another image under kindest/node:v1\.34\.11 than sha256:abab"):
        collect(tmp_path / "out")


def test_wishes_that_cannot_be(programs: Callable[[str, str], Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        collect(tmp_path)
    unknown = Resolved(node=None, kubernetes="", cilium="1.16.19")
    with pytest.raises(ConfigError, match=r"kind v0\.33\.0 is not in the table.*--node-image"):
        collect(tmp_path / "out", pins=unknown)
    made = collect(tmp_path / "out", pins=unknown, node_image="mine:1", images=())
    assert (made.node_image, made.manifest.kubernetes) == ("mine:1", "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, r"no manifest\.json there; `loadgen bundle --out DIR` makes one"),
        ("garbage", "is not readable"),
        ("{}", "is not readable"),
        (json.dumps({"format": 2}), "is not readable"),
    ],
)
def test_what_is_no_bundle(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ConfigError, match=says):
        Bundle.open(tmp_path)
