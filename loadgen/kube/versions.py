"""What goes with what: kind release, node image, Kubernetes, Cilium. Look-ups in kind-configs/versions.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from loadgen.core.errors import ConfigError

FILE = Path(__file__).resolve().parents[2] / "kind-configs" / "versions.yaml"
REPOSITORY = "https://helm.cilium.io"
DEFAULT_CILIUM = "1.16"
"""The minor of the scenarios' default profile."""

Minor = tuple[int, int]


class Image(msgspec.Struct, frozen=True):
    """A container image by tag, and by digest if one is known."""

    name: str
    tag: str
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Image:
        """`NAME:TAG@sha256:…` or `NAME:TAG`. ValueError for anything else."""
        tagged, _, digest = text.partition("@")
        name, colon, tag = tagged.rpartition(":")
        if not colon or "/" in tag or (digest and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest)):
            raise ValueError(f"{text}: not an image by tag, or by tag and digest")
        return cls(name, tag, digest)

    @property
    def tagged(self) -> str:
        """What an image archive can be loaded by: archives keep no digests."""
        return f"{self.name}:{self.tag}"

    def __str__(self) -> str:
        return f"{self.tagged}@{self.digest}" if self.digest else self.tagged


class KindRelease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    images: tuple[str, ...]
    """The first is the release's default."""

    def nodes(self) -> dict[Minor, Image]:
        return {minor(image.tag): image for image in map(Image.parse, self.images)}


class CiliumRelease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    chart: str
    sha256: str
    """Of the chart's archive."""
    kubernetes: str
    """The oldest minor that the chart takes."""
    images: tuple[str, ...]
    tested: tuple[str, ...] = ()
    source: str = ""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    kind: dict[str, KindRelease]
    cgroup_v2_from: str
    cilium: dict[str, CiliumRelease]


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """One set of things that belong together."""

    node: Image | None
    """None: kind's own default, whatever that is."""
    kubernetes: str
    """Version of the node image, "" when that is not known."""
    cilium: str
    """Version of the chart."""
    chart_sha256: str = ""
    """"" for a version that is not in the table: it cannot be checked."""
    images: tuple[Image, ...] = ()
    notes: tuple[str, ...] = ()
    """What a user should know of this choice, a sentence each."""

    @property
    def needs_cgroup_v2(self) -> bool:
        return bool(self.kubernetes) and minor(self.kubernetes) >= minor(table().cgroup_v2_from)


@cache
def table() -> Table:
    """ConfigError where there is no checkout to read it from."""
    try:
        return msgspec.yaml.decode(FILE.read_bytes(), type=Table)
    except FileNotFoundError:
        raise ConfigError(f"{FILE} is missing: loadgen has it only in a checkout; run it from one") from None


def minor(version: str) -> Minor:
    """(1, 16) of 1.16, v1.16.15 or cilium-1.16.15. ConfigError for a text without a version in it."""
    found = re.search(r"(?:^|[v-])(\d+)\.(\d+)(?:\.|$|[-+])", version)
    if found is None:
        raise ConfigError(f"{version!r} is no version; write it as 1.34 or 1.34.4")
    return int(found[1]), int(found[2])


def resolve(*, kind: str, kubernetes: str | None = None, cilium: str | None = None) -> Resolved:
    """Node image and Cilium for a kind release.

    kubernetes: a minor or a full version; None: the one among the release's images that suits this Cilium best.
    cilium: a minor, or the full version of a chart; None: DEFAULT_CILIUM. ConfigError for wishes that do not fit.
    """
    return _resolve(table(), kind, kubernetes, cilium or DEFAULT_CILIUM)


def _resolve(there: Table, kind: str, kubernetes: str | None, cilium: str) -> Resolved:
    wanted = minor(cilium)
    name = f"{wanted[0]}.{wanted[1]}"
    if name not in there.cilium:
        raise ConfigError(f"Cilium {cilium}: known are {', '.join(there.cilium)}; choose by --cilium-version")
    release = there.cilium[name]
    node, notes = _node(there, kind, kubernetes, release, name)
    version = node.tag.removeprefix("v") if node else ""
    exact = cilium.removeprefix("v")
    pinned = exact in (name, release.chart)
    if not pinned:
        notes.append(f"chart {exact} is not the one in the table ({release.chart}): its digest is not checked")
    return Resolved(
        node=node,
        kubernetes=version,
        cilium=release.chart if pinned else exact,
        chart_sha256=release.sha256 if pinned else "",
        images=tuple(map(Image.parse, release.images)) if pinned else _guessed(release, exact),
        notes=tuple(notes),
    )


def _guessed(release: CiliumRelease, version: str) -> tuple[Image, ...]:
    """The same images at another patch level; nothing is known of their digests."""
    return tuple(Image(Image.parse(text).name, f"v{version}") for text in release.images)


def _node(
    there: Table, kind: str, kubernetes: str | None, cilium: CiliumRelease, cilium_name: str
) -> tuple[Image | None, list[str]]:
    if kubernetes is not None:
        _check_floor(minor(kubernetes), kubernetes, cilium, cilium_name)
    release = there.kind.get(kind)
    if release is None:
        if kubernetes is not None:
            raise ConfigError(
                f"kind {kind} is not in the table ({', '.join(there.kind)}), so its image of Kubernetes {kubernetes} "
                "is not known; give it by --node-image"
            )
        return None, [f"kind {kind} is not in the table: its own default node image is used"]
    nodes = release.nodes()
    chosen = _named(kind, release, nodes, kubernetes) if kubernetes else _best(nodes, cilium)
    _check_floor(minor(chosen.tag), chosen.tag, cilium, cilium_name)
    return chosen, _untested(chosen, cilium, cilium_name)


def _named(kind: str, release: KindRelease, nodes: Mapping[Minor, Image], kubernetes: str) -> Image:
    image = nodes.get(minor(kubernetes))
    full = re.fullmatch(r"v?(\d+\.\d+\.\d+)", kubernetes)
    if image is None or (full and image.tag != f"v{full[1]}"):
        known = ", ".join(Image.parse(text).tag.removeprefix("v") for text in release.images)
        raise ConfigError(
            f"Kubernetes {kubernetes}: kind {kind} has images of {known} ({release.source}); choose one of them, "
            "another kind release, or give an image by --node-image"
        )
    return image


def _best(nodes: Mapping[Minor, Image], cilium: CiliumRelease) -> Image:
    """The newest that Cilium is tested with; else the oldest there is, which is the nearest to what it knows."""
    tested = {minor(text) for text in cilium.tested} & set(nodes)
    return nodes[max(tested)] if tested else nodes[min(nodes)]


def _check_floor(found: Minor, named: str, cilium: CiliumRelease, cilium_name: str) -> None:
    if found < minor(cilium.kubernetes):
        raise ConfigError(
            f"Kubernetes {named} is too old for Cilium {cilium_name}, whose chart takes {cilium.kubernetes} or newer"
        )


def _untested(node: Image, cilium: CiliumRelease, cilium_name: str) -> list[str]:
    there = ".".join(map(str, minor(node.tag)))
    if not cilium.tested or there in cilium.tested:
        return []
    return [f"Cilium tests {cilium_name} with Kubernetes {cilium.tested[0]} to {cilium.tested[-1]}, not with {there}"]
