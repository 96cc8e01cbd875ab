from __future__ import annotations

import re

import pytest

from loadgen.core.errors import ConfigError
from loadgen.kube import versions
from loadgen.kube.versions import Image, resolve, table


def test_the_table_has_every_minor_and_nothing_without_a_digest() -> None:
    there = table()
    assert list(there.cilium) == [f"1.{minor}" for minor in range(14, 21)]
    for name, release in there.cilium.items():
        assert versions.minor(release.chart) == versions.minor(name)
        assert re.fullmatch("[0-9a-f]{64}", release.sha256)
        images = [Image.parse(text) for text in release.images]
        assert {image.tag for image in images} == {f"v{release.chart}"}
        assert all(image.digest for image in images)
        assert bool(release.tested) == bool(release.source)
    for release in there.kind.values():
        assert all(Image.parse(text).digest for text in release.images)
        assert len(release.nodes()) == len(release.images)
        assert release.source.startswith("https://github.com/kubernetes-sigs/kind/releases/")


def test_no_digest_is_said_of_two_images() -> None:
    there = table()
    texts = [text for release in there.kind.values() for text in release.images]
    texts += [text for release in there.cilium.values() for text in release.images]
    digests = [Image.parse(text).digest for text in texts]
    assert len(set(digests)) == len(texts)


@pytest.mark.parametrize(
    ("wish", "node", "cilium"),
    [
        ({"kind": "v0.33.0"}, "v1.34.11", "1.16.19"),
        # The newest of those that Cilium is tested with, not the newest.
        ({"kind": "v0.31.0", "cilium": "1.18"}, "v1.33.7", "1.18.12"),
        ({"kind": "v0.25.0"}, "v1.30.6", "1.16.19"),
        ({"kind": "v0.33.0", "cilium": "1.20"}, "v1.34.11", "1.20.0"),
        ({"kind": "v0.33.0", "kubernetes": "1.36"}, "v1.36.4", "1.16.19"),
        ({"kind": "v0.33.0", "kubernetes": "v1.36.4", "cilium": "v1.18.12"}, "v1.36.4", "1.18.12"),
    ],
)
def test_what_belongs_together(wish: dict[str, str], node: str, cilium: str) -> None:
    found = resolve(**wish)
    assert found.node is not None
    assert (found.node.tag, found.cilium) == (node, cilium)
    assert found.node.digest.startswith("sha256:")
    assert len(found.chart_sha256) == 64
    assert {image.tag for image in found.images} == {f"v{cilium}"}


def test_another_patch_level_is_taken_unchecked_and_says_so() -> None:
    found = resolve(kind="v0.33.0", cilium="1.16.15")
    assert (found.cilium, found.chart_sha256) == ("1.16.15", "")
    assert [str(image) for image in found.images] == [
        "quay.io/cilium/cilium:v1.16.15",
        "quay.io/cilium/operator-generic:v1.16.15",
    ]
    assert any("digest is not checked" in note for note in found.notes)


def test_what_cilium_does_not_test_is_noted() -> None:
    assert resolve(kind="v0.33.0", cilium="1.18", kubernetes="1.35").notes == (
        "Cilium tests 1.18 with Kubernetes 1.30 to 1.33, not with 1.35",
    )
    assert resolve(kind="v0.31.0", cilium="1.18").notes == ()


def test_a_kind_release_that_nobody_has_heard_of_makes_its_own_choice() -> None:
    found = resolve(kind="v0.99.0")
    assert (found.node, found.kubernetes) == (None, "")
    assert "v0.99.0" in found.notes[0]


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"kind": "v0.33.0", "cilium": "1.13"}, r"Cilium 1\.13: known are 1\.14, .*1\.20"),
        ({"kind": "v0.33.0", "cilium": "latest"}, "'latest' is no version"),
        ({"kind": "v0.33.0", "cilium": "1.160"}, "known are"),
        ({"kind": "v0.33.0", "kubernetes": "1.33"}, r"kind v0\.33\.0 has images of 1\.37\.0, .*--node-image"),
        ({"kind": "v0.33.0", "kubernetes": "1.34.4"}, r"has images of .*1\.34\.11"),
        ({"kind": "v0.99.0", "kubernetes": "1.35"}, "not in the table.*--node-image"),
        ({"kind": "v0.33.0", "kubernetes": "1.20"}, r"too old for Cilium 1\.16, whose chart takes 1\.21"),
    ],
)
def test_wishes_that_do_not_fit(wish: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve(**wish)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1.16", (1, 16)),
        ("v1.16.15", (1, 16)),
        ("cilium-1.16.15", (1, 16)),
        ("1.20.0-pre.1", (1, 20)),
        ("v1.34.4+k3s1", (1, 34)),
    ],
)
def test_minor(text: str, found: tuple[int, int]) -> None:
    assert versions.minor(text) == found


def test_cgroup_v2_is_needed_from_1_35_on() -> None:
    assert not resolve(kind="v0.33.0", kubernetes="1.34").needs_cgroup_v2
    assert resolve(kind="v0.33.0", kubernetes="1.35").needs_cgroup_v2
    assert not resolve(kind="v0.99.0").needs_cgroup_v2


@pytest.mark.parametrize("text", ["kindest/node", "localhost:5000/kindest/node", "kindest/node:v1@sha256:12"])
def test_not_an_image(text: str) -> None:
    with pytest.raises(ValueError, match="not an image"):
        Image.parse(text)
