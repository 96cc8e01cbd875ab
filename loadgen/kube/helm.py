"""Helm releases, through the helm binary: its JSON is read, its complaints are told in a line.

helm itself only talks to the API server here. It is never asked to wait for pods: `--wait` is over while a DaemonSet
may still miss maxUnavailable of them (seen: both of Cilium's agents in Init).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kube.tools import Done, call

LIMIT_S = 120.0
PULL_LIMIT_S = 300.0
_ALL_REVISIONS = "0"
"""--history-max: none of ours may push out the revision that is to come back."""


class Release(msgspec.Struct, frozen=True):
    """What Helm knows of one."""

    chart: str
    """Name and version: cilium-1.16.15."""
    revision: int
    status: str
    """deployed; failed, or pending-upgrade and the like after a helm that was killed."""

    @property
    def version(self) -> str:
        """Of the chart."""
        found = re.search(r"-v?(\d+\.\d+.*)$", self.chart)
        return found[1] if found else ""


class Chart(msgspec.Struct, frozen=True):
    """Where a chart comes from: a repository and a version, or a file or folder on this machine."""

    name: str
    version: str = ""
    repo: str = ""

    def arguments(self) -> list[str]:
        found = [self.name]
        if self.version:
            found += ["--version", self.version]
        if self.repo:
            found += ["--repo", self.repo]
        return found


class Helm:
    """Releases of one namespace of one context of the kubeconfig that KUBECONFIG names."""

    def __init__(self, context: str, namespace: str) -> None:
        self._where = ("--kube-context", context, "--namespace", namespace)

    async def release(self, name: str) -> Release | None:
        """Its last revision, whatever became of it. None: something else installed what is there."""
        # Not by `helm list`: --all, which shows those that failed, is an error for Helm 4, which always does.
        done = await call("helm", "history", name, "--max", "1", "--output", "json", *self._where, limit_s=LIMIT_S)
        if done.code != 0:
            if "release: not found" in done.err:
                return None
            raise _failure(("history", name), done)
        return _revisions(done.out)[-1]

    async def history(self, name: str) -> tuple[Release, ...]:
        """Every revision that there still is, the oldest first. HarnessError: there is no such release."""
        return _revisions((await self._call("history", name, "--max", "1000", "--output", "json")).out)

    async def values(self, name: str, revision: int | None = None) -> dict[str, Any]:
        """What its user had set; not the chart's defaults."""
        at = ("--revision", str(revision)) if revision is not None else ()
        done = await self._call("get", "values", name, *at, "--output", "json")
        return msgspec.json.decode(done.out) or {}

    async def install(
        self, name: str, chart: Chart, files: Sequence[Path] = (), values: Mapping[str, Any] | None = None
    ) -> None:
        """Files in order, `values` over them. The release must not exist."""
        argv = ["install", name, *chart.arguments()]
        for file in files:
            argv += ["--values", str(file)]
        await self._call(*argv, values=values or {})

    async def upgrade(self, name: str, chart: Chart, values: Mapping[str, Any], *, reuse: bool = True) -> None:
        """The same release with `values` over those that it has, or (reuse=False) with `values` and no others.

        A null takes a value away: what the chart says of it by itself holds again.
        """
        keep = "--reuse-values" if reuse else "--reset-values"
        argv = ("upgrade", name, *chart.arguments(), keep, "--history-max", _ALL_REVISIONS)
        await self._call(*argv, values=values)

    async def rollback(self, name: str, revision: int) -> None:
        """To the values, and the chart, of an earlier revision; Helm keeps both in the cluster."""
        await self._call("rollback", name, str(revision), "--history-max", _ALL_REVISIONS)

    async def uninstall(self, name: str) -> None:
        """HarnessError: there is no such release."""
        await self._call("uninstall", name)

    async def _call(self, *argv: str, values: Mapping[str, Any] | None = None) -> Done:
        return await _helm(*argv, *self._where, values=values)


def _revisions(text: str) -> tuple[Release, ...]:
    return tuple(
        Release(chart=one["chart"], revision=int(one["revision"]), status=one["status"])
        for one in msgspec.json.decode(text)
    )


async def template(chart: Chart, values: Mapping[str, Any], *, kubernetes: str, files: Sequence[Path] = ()) -> str:
    """What the chart makes of these values, as YAML; no cluster is asked. ConfigError when it refuses them."""
    argv = ["template", "cilium", *chart.arguments(), "--kube-version", kubernetes]
    for file in files:
        argv += ["--values", str(file)]
    return (await _helm(*argv, values=values)).out


async def pull(chart: Chart, folder: Path) -> None:
    """The chart's archive into `folder`."""
    await _helm("pull", *chart.arguments(), "--destination", str(folder), limit_s=PULL_LIMIT_S)


async def _helm(*argv: str, values: Mapping[str, Any] | None = None, limit_s: float = LIMIT_S) -> Done:
    """Values go in by stdin: there, unlike in --set, no comma, dot or digit means anything but itself."""
    stdin = None if values is None else msgspec.json.encode(values)
    more = () if values is None else ("--values", "-")
    done = await call("helm", *argv, *more, stdin=stdin, limit_s=limit_s)
    if done.code != 0:
        raise _failure(argv, done)
    return done


_THE_CLUSTERS = (
    ("has no deployed releases", "there is no such release, or it was never deployed; see helm list --all"),
    ("release: not found", "there is no such release; see helm list --all"),
    (
        "another operation (install/upgrade/rollback) is in progress",
        "a helm is at work on this release, or one was killed: helm history and helm rollback tell and mend it",
    ),
    ("cannot re-use a name that is still in use", "there is a release of that name already"),
    ("context deadline exceeded", "the cluster was not done in time; helm history tells the state of the release"),
)


def _failure(argv: Sequence[str], done: Done) -> ConfigError | HarnessError:
    """Values and charts that are refused are the user's to mend; everything else is the cluster's."""
    what = f"helm {argv[0]} {argv[1] if len(argv) > 1 else ''}".strip()
    everything = done.err or done.out
    said = _first_error(everything)
    if "values don't meet the specifications of the schema" in everything:
        lines = [line.strip().removeprefix("- ") for line in everything.partition("chart(s):")[2].splitlines()]
        told = "; ".join(line for line in lines if line and not line.endswith(":"))
        return ConfigError(f"{what}: the chart refuses a value: {told or said}")
    if "execution error at" in said or "error calling" in said:
        return ConfigError(f"{what}: the chart refuses a value: {_innermost(said)}")
    if "chart requires kubeVersion" in said:
        return ConfigError(f"{what}: {said.partition('chart requires ')[1]}{said.partition('chart requires ')[2]}")
    if "is not a valid chart repository or cannot be reached" in said:
        return ConfigError(f"{what}: {said}; without a network use --bundle")
    if re.search(r"repo \S+ not found|path \S+ not found|chart .* not found|non-absolute URLs", said):
        return ConfigError(f"{what}: {said}; is the chart's path or version right?")
    for mark, meaning in _THE_CLUSTERS:
        if mark in said:
            return HarnessError(f"{what}: {said} ({meaning})")
    return HarnessError(f"{what}: {said}")


def _first_error(text: str) -> str:
    """Helm says it first and gives advice after it."""
    for line in text.splitlines():
        if line.startswith("Error: "):
            return line.removeprefix("Error: ").strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _innermost(said: str) -> str:
    """A template's error names every template on its way; the last part is what somebody meant to say."""
    if (at := re.search(r"execution error at \(([^)]*)\): (.*)", said)) is not None:
        return f"{at[2]} ({at[1]})"
    values = re.findall(r"\.Values\.([\w.-]+)", said)
    reason = said.rpartition("error calling ")[2].partition(": ")[2] or said
    return f"{values[-1]}: {reason}" if values else reason
