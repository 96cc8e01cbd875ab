"""Charts and image archives in a folder, for machines that reach no registry: collected where there is a network.

DIR/manifest.json     what is in it, for which versions, each file with its SHA-256
DIR/charts/*.tgz      Cilium's chart
DIR/images/*.tar      archives (`docker save`): kind's node image for the engine, the others for the nodes
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from loadgen import __version__
from loadgen.core.errors import ConfigError
from loadgen.kube import helm
from loadgen.kube.helm import Chart
from loadgen.kube.kindcluster import KindCluster, engine
from loadgen.kube.tools import Done, call
from loadgen.kube.versions import REPOSITORY, Image, Resolved

MANIFEST, FORMAT = "manifest.json", 1
PULL_LIMIT_S, SAVE_LIMIT_S = 1800.0, 600.0

Say = Callable[[str], None]


class ChartFile(msgspec.Struct, frozen=True):
    file: str
    sha256: str


class Archive(msgspec.Struct, frozen=True):
    """One image. `reference`: what was asked for, with a digest if one was known; `tag`: what it is loaded as."""

    file: str
    sha256: str
    reference: str
    tag: str
    place: Literal["engine", "nodes"]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    loadgen: str
    kind: str
    architecture: str
    kubernetes: str
    cilium: str
    chart: ChartFile
    images: tuple[Archive, ...]


class Bundle:
    """One that was collected before."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest

    @classmethod
    def open(cls, folder: Path) -> Bundle:
        """ConfigError when it is none, or one that a newer loadgen made. Files are looked at by `verify`."""
        try:
            found = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
        except FileNotFoundError:
            raise ConfigError(
                f"--bundle {folder}: no {MANIFEST} there; `loadgen bundle --out DIR` makes one"
            ) from None
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"--bundle {folder}: {MANIFEST} is not readable: {error}") from None
        if found.format != FORMAT:
            raise ConfigError(f"--bundle {folder}: its format is {found.format}, this loadgen knows {FORMAT}")
        return cls(folder, found)

    async def verify(self, *, kind: str, cilium: str | None = None) -> tuple[str, ...]:
        """Notes, a sentence each. ConfigError names every file that is not what it was, or what does not fit here."""
        files = [self.manifest.chart, *self.manifest.images]
        wrong = [text for text in await asyncio.gather(*map(self._wrong, files)) if text]
        if wrong:
            raise ConfigError(f"--bundle {self.folder}: {'; '.join(wrong)}; copy it again, or make it anew")
        there = self.manifest.cilium
        if cilium is not None and cilium.removeprefix("v") not in (there, ".".join(there.split(".")[:2])):
            raise ConfigError(f"--cilium-version {cilium}: the bundle {self.folder} has Cilium {there}")
        architecture = await _architecture()
        if architecture != self.manifest.architecture:
            made_for = self.manifest.architecture
            raise ConfigError(
                f"--bundle {self.folder}: it was made for {made_for}, this {engine()} runs {architecture}"
            )
        if kind != self.manifest.kind:
            return (f"the bundle's node image was built for kind {self.manifest.kind}, here is {kind}",)
        return ()

    async def _wrong(self, file: ChartFile | Archive) -> str:
        path = self.folder / file.file
        if not await asyncio.to_thread(path.is_file):
            return f"{file.file} is missing"
        return "" if await _sha256(path) == file.sha256 else f"{file.file} has changed"

    @property
    def chart(self) -> Chart:
        return Chart(str(self.folder / self.manifest.chart.file))

    @property
    def node_image(self) -> str:
        """For `kind create cluster --image`, once it is loaded."""
        return next(archive.tag for archive in self.manifest.images if archive.place == "engine")

    async def load_node_image(self) -> None:
        """Into the engine, which makes nodes of it."""
        for archive in self.manifest.images:
            if archive.place == "engine":
                await _engine("load", "-i", str(self.folder / archive.file), limit_s=SAVE_LIMIT_S)

    async def load_into(self, cluster: KindCluster) -> None:
        """Everything else, into the cluster's nodes."""
        for archive in self.manifest.images:
            if archive.place == "nodes":
                await cluster.load_archive(self.folder / archive.file)


async def collect(
    out: Path,
    pins: Resolved,
    kind: str,
    images: Sequence[str],
    say: Say,
    *,
    node_image: str | None = None,
    repository: str = REPOSITORY,
) -> Bundle:
    """Make one in `out`, which must not exist: Cilium's chart and images, kind's node image, and `images`.

    ConfigError when something cannot be got; nothing of it is left then.
    """
    node = node_image or (str(pins.node) if pins.node else "")
    if not node:
        raise ConfigError(f"kind {kind} is not in the table of versions, so its image is not known; use --node-image")
    partial = _begin(out)
    try:
        say(f"chart of Cilium {pins.cilium}")
        chart = await fetch_chart(pins, partial / "charts", repository)
        say(f"image {node}")
        archives = [await _save(node, partial, "engine")]
        for reference in (*map(str, pins.images), *images):
            say(f"image {reference}")
            archives.append(await _save(reference, partial, "nodes"))
        manifest = Manifest(
            format=FORMAT,
            loadgen=__version__,
            kind=kind,
            architecture=await _architecture(),
            kubernetes="" if node_image else pins.kubernetes,
            cilium=pins.cilium,
            chart=ChartFile(str(chart.relative_to(partial)), await _sha256(chart)),
            images=tuple(archives),
        )
        _finish(partial, out, manifest)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return Bundle(out, manifest)


def _begin(out: Path) -> Path:
    """A folder beside the one that is to be, which stands for a bundle only once it is whole."""
    if out.exists():
        raise ConfigError(f"--out {out}: exists already; choose another folder")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be made: {error.strerror}") from None


def _finish(partial: Path, out: Path, manifest: Manifest) -> None:
    (partial / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    partial.chmod(0o755)
    partial.rename(out)


async def fetch_chart(pins: Resolved, folder: Path, repository: str = REPOSITORY) -> Path:
    """The archive of Cilium's chart. ConfigError when it is not the one that the table of versions names."""
    os.makedirs(folder, exist_ok=True)
    await helm.pull(Chart("cilium", pins.cilium, repository), folder)
    path = folder / f"cilium-{pins.cilium}.tgz"
    found = await _sha256(path)
    if pins.chart_sha256 and found != pins.chart_sha256:
        raise ConfigError(
            f"{repository}: chart cilium {pins.cilium} has SHA-256 {found}, expected was {pins.chart_sha256}; it was "
            "changed on its way, or kind-configs/versions.yaml is wrong"
        )
    return path


# --- the engine -----------------------------------------------------------------------------------------------


async def _save(reference: str, folder: Path, place: Literal["engine", "nodes"]) -> Archive:
    """Into an archive, under its name and tag: what a digest named cannot be found by it in an archive."""
    image = Image.parse(reference)
    if (await _inspect(reference)).code != 0:
        await _engine("pull", reference, limit_s=PULL_LIMIT_S)
    if image.digest:
        await _tag(image)
    file = Path("images") / f"{re.sub(r'[^A-Za-z0-9.]+', '-', image.tagged)}.tar"
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    await _engine("save", "-o", str(folder / file), image.tagged, limit_s=SAVE_LIMIT_S)
    return Archive(str(file), await _sha256(folder / file), reference, image.tagged, place)


async def _tag(image: Image) -> None:
    """Give what was pulled by digest its tag, unless somebody uses that tag for something else."""
    pulled, tagged = await _inspect(str(image), "{{.Id}}"), await _inspect(image.tagged, "{{.Id}}")
    if tagged.code == 0 and tagged.out.strip() != pulled.out.strip():
        raise ConfigError(
            f"{engine()} has another image under {image.tagged} than {image.digest}; rename or remove it first: "
            f"{engine()} rmi {image.tagged}"
        )
    if tagged.code != 0:
        await _engine("tag", pulled.out.strip(), image.tagged)


async def _inspect(image: str, form: str = "") -> Done:
    return await call(engine(), "image", "inspect", *(("--format", form) if form else ()), image)


async def _architecture() -> str:
    """Of the engine: amd64, arm64."""
    done = await _engine("version", "--format", "{{.Server.Arch}}" if engine() == "docker" else "{{.Client.OsArch}}")
    return done.out.strip().rpartition("/")[2]


async def _engine(*argv: str, limit_s: float = 60.0) -> Done:
    done = await call(engine(), *argv, limit_s=limit_s)
    if done.code != 0:
        raise ConfigError(f"{engine()} {argv[0]} {argv[-1]}: {done.last_words()}")
    return done


async def _sha256(path: Path) -> str:
    def read() -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return await asyncio.to_thread(read)
