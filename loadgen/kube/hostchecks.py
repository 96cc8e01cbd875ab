"""What this machine lacks for a kind cluster, found before anything is made."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from loadgen.core.errors import ConfigError, HarnessError, NotSupported
from loadgen.core.model import Bpf
from loadgen.kernel.support import Feature, available_memory
from loadgen.kube.kindcluster import engine, topology_file
from loadgen.kube.tools import Done, call

KIND_LEAST, KIND_BEST = (0, 20), "v0.33.0"
HELM_LEAST = (3, 8)
"""The first whose --set-json and schema messages are as we know them."""
ENGINE_LEAST = {"docker": (20, 10), "podman": (4, 0)}
"""kind's release notes, v0.20.0."""

CONTROL_PLANE_BYTES, WORKER_BYTES = 600 << 20, 150 << 20
"""Seen: 400 and 50 MiB once a cluster is up; more while it comes up."""
AGENT_BYTES = 300 << 20
ENTRY_BYTES = 136
"""Of an IPv4 CT table, which the kernel allocates when it is made: 120 bytes an element and 16 a bucket."""
GENERATORS_BYTES = 1 << 30
INOTIFY_LEAST = {"max_user_instances": 512, "max_user_watches": 65536}
"""kind's known issues: systemd, kubelet and containerd of each node take dozens of instances."""
ANSWER_LIMIT_S = 30.0
REGISTRY_LIMIT_S = 3.0

Reach = Callable[[str], Awaitable[bool]]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster is to be, as far as this machine has to bear it."""

    cni: str = "cilium"
    name: str | None = None
    """Of a cluster that must not be there yet; None: not asked."""
    workers: int = 2
    families: int = 1
    tables: Bpf = Bpf()
    """CT tables of each node; with --cni none there are none of ours."""
    cgroup_v2: bool = False
    images: tuple[str, ...] = ()
    """What the engine must have, or be able to pull."""

    @classmethod
    def of(cls, topology: str, **more: Any) -> Plan:
        """With the nodes and address families of a topology (kindcluster.topology_file)."""
        path = topology_file(topology)
        try:
            found = yaml.safe_load(path.read_text())
            roles = [node["role"] for node in found.get("nodes") or [{"role": "control-plane"}]]
            dual = (found.get("networking") or {}).get("ipFamily") == "dual"
        except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: no configuration of kind's: {str(error).splitlines()[0]}") from None
        return cls(workers=roles.count("worker"), families=2 if dual else 1, **more)

    def memory(self) -> int:
        """Bytes, with what the generators take."""
        nodes = self.workers + 1
        needed = CONTROL_PLANE_BYTES + self.workers * WORKER_BYTES + GENERATORS_BYTES
        if self.cni != "none":
            entries = self.tables.ct_tcp_max + self.tables.ct_any_max
            needed += nodes * (AGENT_BYTES + entries * ENTRY_BYTES * self.families)
        return needed


async def probe_all(cni: str = "cilium", plan: Plan | None = None) -> tuple[Feature, ...]:
    """Every check, whatever the others found. Helm is asked for only where Cilium is to be installed."""
    wanted = plan or Plan(cni=cni)
    first = await asyncio.gather(_engine(wanted), _kind(), *([_helm()] if wanted.cni == "cilium" else []))
    found = [feature for features in first for feature in features]
    usable = all(feature.state == "ok" for feature in found if feature.name in (engine(), "kind"))
    if usable and wanted.name is not None:
        found.append(await _cluster(wanted.name))
    if usable and wanted.images:
        found.append(await images(wanted.images))
    return (*found, memory(wanted), inotify())


async def require(cni: str, plan: Plan | None = None) -> None:
    """ConfigError that names everything that is missing, each with its remedy."""
    lacking = [f for f in await probe_all(cni, plan) if f.state == "missing"]
    if lacking:
        told = "; ".join(f"{f.name}: {f.why}{f' ({f.remedy})' if f.remedy else ''}" for f in lacking)
        raise ConfigError(f"a kind cluster cannot be made here: {told}")


# --- programs -------------------------------------------------------------------------------------------------


class EngineInfo(NamedTuple):
    """What `ENGINE info` says, in the words of docker or of podman."""

    version: str
    cgroup_v2: bool | None

    @classmethod
    def parse(cls, text: str) -> EngineInfo:
        """ValueError when it is not JSON."""
        told = json.loads(text)
        host = told.get("host") or {}
        version = told.get("ServerVersion") or (told.get("version") or {}).get("Version") or ""
        cgroups = str(told.get("CgroupVersion") or host.get("cgroupVersion") or "").removeprefix("v")
        return cls(version, {"1": False, "2": True}.get(cgroups))


async def _engine(plan: Plan) -> list[Feature]:
    name = engine()
    if shutil.which(name) is None:
        remedy = "install it, or set KIND_EXPERIMENTAL_PROVIDER"
        return [Feature(name, "missing", "not found on PATH", remedy)]
    done = await _answer(name, "info", "--format", "{{json .}}")
    if done is None:
        return [Feature(name, "missing", f"no answer within {ANSWER_LIMIT_S:g} s", "restart its daemon")]
    if done.code != 0:
        return [Feature(name, "missing", done.last_words(), "start its daemon; see DOCKER_HOST")]
    try:
        info = EngineInfo.parse(done.out)
    except ValueError:
        return [Feature(name, "ok", "it answers")]
    found = [_new_enough(name, info.version, ENGINE_LEAST.get(name), f"{name} of your distribution")]
    if plan.cgroup_v2:
        found.append(_cgroups(info))
    return found


def _cgroups(info: EngineInfo) -> Feature:
    if info.cgroup_v2 is None:
        return Feature("cgroups", "unknown", f"{engine()} does not say which version it uses")
    if info.cgroup_v2:
        return Feature("cgroups", "ok", "version 2")
    why = "version 1, and nodes from Kubernetes 1.35 on need version 2"
    return Feature("cgroups", "missing", why, "boot with systemd.unified_cgroup_hierarchy=1, or older nodes")


async def _kind() -> list[Feature]:
    done = await _answer("kind", "version")
    if done is None:
        return [Feature("kind", "missing", "not found on PATH", f"go install sigs.k8s.io/kind@{KIND_BEST}")]
    version = _version(done.out)
    if version is None:
        return [Feature("kind", "unknown", f"`kind version` says {(done.out + done.err).strip()!r}")]
    return [_new_enough("kind", version, KIND_LEAST, f"go install sigs.k8s.io/kind@{KIND_BEST}")]


async def kind_version() -> str:
    """`v0.33.0`, as the table of versions names it. ConfigError when there is no kind."""
    done = await call("kind", "version", limit_s=ANSWER_LIMIT_S)
    version = _version(done.out)
    if version is None:
        raise ConfigError(f"`kind version` says {(done.out + done.err).strip()!r}; is it sigs.k8s.io/kind?")
    return f"v{version}"


async def _helm() -> list[Feature]:
    remedy = "install Helm, 3.8 or newer, or use --cni model or none"
    done = await _answer("helm", "version", "--short")
    if done is None:
        return [Feature("helm", "missing", "not found on PATH", remedy)]
    version = _version(done.out)
    if version is None:
        return [Feature("helm", "missing", f"`helm version` says {done.last_words()!r}", remedy)]
    return [_new_enough("helm", version, HELM_LEAST, remedy)]


async def _answer(*argv: str) -> Done | None:
    """None: there is no such program, or it does not answer."""
    try:
        return await call(*argv, limit_s=ANSWER_LIMIT_S)
    except (NotSupported, HarnessError):
        return None


def _version(text: str) -> str | None:
    found = re.search(r"\d+\.\d+(\.\d+)?", text)
    return found[0] if found else None


def _new_enough(name: str, version: str, least: tuple[int, int] | None, remedy: str) -> Feature:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return Feature(name, "ok", version or "it answers")
    if least is not None and (int(numbers[1]), int(numbers[2])) < least:
        return Feature(name, "missing", f"{version} is older than {least[0]}.{least[1]}", remedy)
    return Feature(name, "ok", version)


# --- the engine's things --------------------------------------------------------------------------------------


async def _cluster(name: str) -> Feature:
    done = await _answer("kind", "get", "clusters")
    if done is None or done.code != 0:
        return Feature("cluster name", "unknown", "kind does not list its clusters")
    if name in done.out.split():
        remedy = "use it with --testbed kind, delete it with `loadgen down`, or set KIND_CLUSTER_NAME"
        return Feature("cluster name", "missing", f"there is a kind cluster {name} already", remedy)
    return Feature("cluster name", "ok", f"{name} is free")


async def reachable(registry: str) -> bool:
    """Whether a connection to it can be made. With a proxy it is the engine that knows, and we believe it can."""
    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        return True
    host, _, port = registry.partition(":")
    try:
        async with asyncio.timeout(REGISTRY_LIMIT_S):
            _, writer = await asyncio.open_connection(host, int(port or 443))
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return True


def registry_of(image: str) -> str:
    """docker.io's names leave it out; a first part with a dot or a port, or localhost, is a registry."""
    first, slash, _ = image.partition("/")
    named = slash and ("." in first or ":" in first or first == "localhost")
    return first if named and first != "docker.io" else "registry-1.docker.io"


async def images(wanted: Sequence[str], reach: Reach = reachable) -> Feature:
    """Those that the engine does not have must be pulled, for which their registry must be there."""
    there = await asyncio.gather(*(_has(image) for image in wanted))
    absent = [image for image, yes in zip(wanted, there, strict=True) if not yes]
    registries = sorted({registry_of(image) for image in absent})
    answers = dict(zip(registries, await asyncio.gather(*map(reach, registries)), strict=True))
    lost = [image for image in absent if not answers[registry_of(image)]]
    if lost:
        why = f"{', '.join(lost)}: not here, and {', '.join(r for r in registries if not answers[r])} is out of reach"
        return Feature(
            "images", "missing", why, "make a bundle where there is a network: loadgen bundle; --bundle DIR"
        )
    if absent:
        return Feature("images", "ok", f"{len(absent)} of {len(wanted)} will be pulled")
    return Feature("images", "ok", "all are here")


async def _has(image: str) -> bool:
    done = await _answer(engine(), "image", "inspect", image)
    return done is not None and done.code == 0


# --- the kernel's ---------------------------------------------------------------------------------------------


def memory(plan: Plan, available: int | None = None) -> Feature:
    there, needed = available_memory() if available is None else available, plan.memory()
    why = f"{there / 2**30:.1f} GiB available, {needed / 2**30:.1f} GiB needed for {plan.workers + 1} nodes"
    if there >= needed:
        return Feature("memory", "ok", why)
    return Feature("memory", "missing", why, "end other programs, or choose smaller bpf.ctTcpMax or fewer nodes")


def inotify(root: Path = Path("/proc/sys/fs/inotify")) -> Feature:
    try:
        there = {name: int((root / name).read_text()) for name in INOTIFY_LEAST}
    except (OSError, ValueError) as error:
        return Feature("inotify", "unknown", str(error))
    why = ", ".join(f"{name} is {value}" for name, value in there.items())
    if all(there[name] >= least for name, least in INOTIFY_LEAST.items()):
        return Feature("inotify", "ok", why)
    least = ", ".join(f"{least} {name}" for name, least in INOTIFY_LEAST.items())
    remedy = "sysctl -w fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288"
    return Feature("inotify", "missing", f"{why}; several nodes need {least}", remedy)
