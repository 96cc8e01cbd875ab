"""The chart of a Helm release, out of the record that Helm keeps of it in the cluster.

An upgrade needs the chart that the release was made of. Helm stores it whole with every revision, so no repository
has to be reached and nobody has to know where the chart once came from.
"""

from __future__ import annotations

import base64
import gzip
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kube.api import KubeApi, KubeError


class _File(msgspec.Struct):
    name: str
    data: bytes = b""
    """msgspec takes the base64 off."""


class _Chart(msgspec.Struct):
    metadata: dict[str, Any]
    templates: tuple[_File, ...] | None = ()
    values: dict[str, Any] | None = None
    schema: bytes | None = None
    files: tuple[_File, ...] | None = ()


class _Record(msgspec.Struct):
    chart: _Chart


class _Secret(msgspec.Struct):
    data: dict[str, bytes] = {}


async def write(api: KubeApi, namespace: str, release: str, revision: int, folder: Path) -> Path:
    """Lay the chart of this revision out below `folder`; returns its own folder.

    ConfigError when Helm keeps its records elsewhere (HELM_DRIVER), or the chart has charts of its own.
    """
    name = f"sh.helm.release.v1.{release}.v{revision}"
    try:
        secret = await api.get(f"/api/v1/namespaces/{namespace}/secrets/{name}", _Secret)
    except KubeError as error:
        if error.status != 404:
            raise
        raise ConfigError(
            f"context {api.context}: no Secret {namespace}/{name}, where Helm keeps a release unless HELM_DRIVER "
            "says otherwise; give its chart by --bundle"
        ) from None
    return lay_out(secret.data.get("release", b""), folder, f"Secret {namespace}/{name}")


def lay_out(record: bytes, folder: Path, where: str) -> Path:
    """From Helm's record (base64 of gzip of JSON). HarnessError when it is none."""
    try:
        chart = msgspec.json.decode(gzip.decompress(base64.b64decode(record)), type=_Record).chart
        name = str(chart.metadata["name"])
    except (ValueError, OSError, EOFError, zlib.error, KeyError, msgspec.MsgspecError) as error:
        raise HarnessError(f"{where}: not readable as a record of Helm's: {error}") from None
    if chart.metadata.get("dependencies"):
        raise ConfigError(f"{where}: chart {name} has charts of its own, which Helm does not keep; use --bundle")
    place = folder / name
    _put(place, "Chart.yaml", msgspec.yaml.encode(chart.metadata))
    _put(place, "values.yaml", msgspec.yaml.encode(chart.values or {}))
    if chart.schema:
        _put(place, "values.schema.json", chart.schema)
    for file in (*(chart.templates or ()), *(chart.files or ())):
        if not _inside(file.name):
            raise HarnessError(f"{where}: a file of the chart would be put outside of it: {file.name}")
        _put(place, file.name, file.data)
    return place


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts)


def _put(place: Path, name: str, content: bytes) -> None:
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
