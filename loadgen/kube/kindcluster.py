"""One kind cluster: made, filled with images, asked for its logs, deleted. The `kind` binary does the work."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import tempfile
from pathlib import Path

from loadgen.core.errors import ConfigError, HarnessError, NotSupported
from loadgen.kube import kubeconfig, kubeconfigfile
from loadgen.kube.tools import Done, call

CONFIGS = Path(__file__).resolve().parents[2] / "kind-configs"
CREATE_LIMIT_S = 600.0
ENGINES = ("docker", "podman", "nerdctl", "finch")
_NOT_TOPOLOGIES = ("versions",)
_NAME = re.compile(r"[a-z0-9.-]+")
_DELETE_TRIES = 3


def engine() -> str:
    """The container engine that kind will use. ConfigError for a name that kind does not know."""
    name = os.environ.get("KIND_EXPERIMENTAL_PROVIDER") or "docker"
    if name not in ENGINES:
        raise ConfigError(f"KIND_EXPERIMENTAL_PROVIDER={name}: kind knows {', '.join(ENGINES)}")
    return name


def topologies() -> dict[str, Path]:
    """What there is below kind-configs/, by name."""
    found = sorted(CONFIGS.glob("*.yaml"))
    return {path.stem: path for path in found if path.stem not in _NOT_TOPOLOGIES}


def topology_file(name: str) -> Path:
    """A topology by its name below kind-configs/, or the file that `name` is. ConfigError when it is neither."""
    known = topologies()
    if name in known:
        return known[name]
    if Path(name).is_file():
        return Path(name)
    there = ", ".join(known) or "none: this is no checkout"
    raise ConfigError(f"--kind-config {name}: neither a file nor one of {there}")


class KindCluster:
    """The cluster of this name, whether it exists or not."""

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"KIND_CLUSTER_NAME={name}: a cluster's name has only lower case, digits, '.' and '-'")
        self.name = name
        self.context = f"kind-{name}"

    async def exists(self) -> bool:
        """ConfigError when the engine does not answer."""
        done = await call("kind", "get", "clusters")
        if done.code != 0:
            raise ConfigError(f"kind get clusters: {done.last_words()}; is {engine()} running?")
        return self.name in done.out.split()

    async def create(self, topology: str, *, image: str | None = None, switch_context: bool = False) -> None:
        """Make it. The user's current context stays as it is unless `switch_context`.

        ConfigError when kind says no; whatever it had made is deleted again, also when we are cancelled.
        """
        config = topology_file(topology)
        if await self.exists():
            # Asked first: what cleans up after a failure must never meet a cluster that was there before.
            raise ConfigError(
                f"there is a kind cluster {self.name} already; use it with --testbed kind, delete it with "
                "`loadgen down`, or choose another name by KIND_CLUSTER_NAME"
            )
        number, log = tempfile.mkstemp(prefix=f"loadgen-kind-{self.name}-", suffix=".log")
        os.close(number)
        kept = False
        try:
            with tempfile.TemporaryDirectory(prefix="loadgen-kind-") as folder:
                own = Path(folder) / "config"
                done = await self._create(config, own, image, Path(log))
                if done.code != 0:
                    kept = True
                    why = explain(done)
                    raise ConfigError(f"kind could not make cluster {self.name}: {why}; all that it said: {log}")
                target = kubeconfigfile.for_new_entries(kubeconfig.path_of())
                kubeconfigfile.merge(own, target, switch_context=switch_context)
        except BaseException:
            await asyncio.shield(self._delete_nodes())
            raise
        finally:
            if not kept:
                os.unlink(log)

    async def _create(self, config: Path, own: Path, image: str | None, log: Path) -> Done:
        argv: list[str | Path] = ["kind", "create", "cluster", "--name", self.name, "--config", config]
        argv += ["--kubeconfig", own, *(["--image", image] if image else [])]
        return await call(*argv, limit_s=CREATE_LIMIT_S, log=log)

    async def load_image(self, image: str) -> None:
        """Copy an image of the local engine into every node. ConfigError when the engine has none of that name."""
        name = engine()
        inspected = await call(name, "image", "inspect", image)
        if inspected.code != 0:
            raise ConfigError(f"{name} has no image {image}; make it: {name} build -t {image} .")
        if name == "docker":
            done = await call("kind", "load", "docker-image", image, "--name", self.name)
            if done.code != 0:
                raise ConfigError(f"{image} cannot be loaded into {self.name}: {done.last_words()}")
            return
        # `kind load docker-image` asks docker, whatever the nodes run in.
        with tempfile.TemporaryDirectory(prefix="loadgen-kind-") as folder:
            archive = Path(folder) / "image.tar"
            done = await call(name, "save", "-o", archive, image)
            if done.code != 0:
                raise ConfigError(f"{name} save {image}: {done.last_words()}")
            await self.load_archive(archive)

    async def load_archive(self, archive: Path) -> None:
        """Copy all images of an archive (`docker save`) into every node."""
        done = await call("kind", "load", "image-archive", archive, "--name", self.name)
        if done.code != 0:
            raise ConfigError(f"{archive} cannot be loaded into {self.name}: {done.last_words()}")

    async def export_logs(self, folder: Path) -> str:
        """Everything kind knows of its nodes. Returns why it could not, "" when it could: something has failed
        already when this is asked for, and that is what has to be told."""
        try:
            done = await call("kind", "export", "logs", folder, "--name", self.name)
        except (HarnessError, NotSupported) as error:
            return str(error)
        return "" if done.code == 0 else f"kind export logs: {done.last_words()}"

    async def delete(self) -> None:
        """Delete nodes and kubeconfig entries. Idempotent."""
        await self._delete_nodes()
        kubeconfigfile.remove(kubeconfigfile.files(kubeconfig.path_of()), self.context)

    async def _delete_nodes(self) -> None:
        """Until none is left: an engine goes on making a container that it was asked for before kind was ended."""
        said = ""
        for _ in range(_DELETE_TRIES):
            with tempfile.TemporaryDirectory(prefix="loadgen-kind-") as folder:
                # kind would rewrite the user's kubeconfig, current context included.
                own = f"{folder}/config"
                done = await call("kind", "delete", "cluster", "--name", self.name, "--kubeconfig", own)
            said = done.last_words()
            left = await call("kind", "get", "nodes", "--name", self.name)
            if done.code == 0 and left.code == 0 and not left.out.split():
                return
        raise HarnessError(
            f"kind could not delete cluster {self.name}: {said}; try: kind delete cluster --name {self.name}"
        )


_CAUSES = (
    (
        "failed to pull image",
        "its node image cannot be pulled ({said}); without a registry use --bundle, or --node-image with one that "
        "is there",
    ),
    ("unable to decode config", "the topology is no configuration of kind's: {said}"),
    ("invalid kubeProxyMode", "the topology is no configuration of kind's: {said}"),
    ("Cannot connect to the Docker daemon", "{engine} does not answer; start its daemon, or set DOCKER_HOST"),
    ("permission denied while trying to connect", "{engine} may not be used by you; join its group, or use sudo"),
    (
        "could not find a log line that matches",
        "a node does not boot: too few inotify instances (sysctl fs.inotify.max_user_instances), or cgroups that its "
        "systemd cannot use; `loadgen doctor --testbed kind` knows",
    ),
    (
        "unable to apply caps",
        "{engine} may not give a container all capabilities here, which --privileged asks for ({said})",
    ),
    ("port is already allocated", "a port of the topology is taken: {said}"),
    ("failed to init node with kubeadm", "Kubernetes does not start on the control plane: {said}"),
    ("failed to join node with kubeadm", "a worker does not join: {said}"),
    ("no space left on device", "the disk is full"),
)


def explain(done: Done) -> str:
    """What kind said, in one line that says what to do where that is known."""
    said = _whole(done).removeprefix("failed to create cluster: ")
    everything = done.out + done.err
    for mark, text in _CAUSES:
        if mark in everything:
            return text.format(said=said, engine=engine())
    return said


def _whole(done: Done) -> str:
    """Its error with the indented lines that go on with it."""
    last = done.last_words()
    lines = done.err.splitlines()
    at = next((i for i, line in enumerate(lines) if line.strip().removeprefix("ERROR: ") == last), len(lines))
    more = itertools.takewhile(lambda line: line.startswith(" "), lines[at + 1 :])
    return " ".join([last, *(line.strip() for line in more)])
