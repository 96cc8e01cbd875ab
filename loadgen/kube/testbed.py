"""A Kubernetes cluster as a testbed (ports.Testbed): what is checked, made and put back for a whole experiment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.model import Churn, Scenario, Variant
from loadgen.kube import generators, guards, saved, workspace
from loadgen.kube.api import KubeApi
from loadgen.kube.cni import Cni, make
from loadgen.kube.deployment import ClusterDeployment, Place
from loadgen.kube.options import ClusterOptions

Say = Callable[[str], None]

PUT_BACK_LIMIT_S = 300.0
"""Restarting the agents of a big cluster one by one takes minutes; after this we say what is left to do."""


class ClusterTestbed:
    """Any cluster of a kubeconfig. `session` holds what all variants share; `deploy` is one variant's."""

    name = "cluster"

    def __init__(self, options: ClusterOptions, say: Say) -> None:
        self._options = options
        self._say = say
        self._place: Place | None = None

    def check(self, scenario: Scenario) -> None:
        """What is wrong whatever the cluster is; `session` asks the cluster itself."""
        for variant in scenario.variants.values():
            generators.check(scenario.loads, variant.settings)
        for name, load in scenario.loads.items():
            if isinstance(load, Churn) and load.timeout.seconds > guards.EVENT_LIFE_S:
                raise ConfigError(
                    f"loads.{name}.timeout: {load.timeout} is longer than a cluster keeps its events (1 h); failed "
                    "attempts could not be counted"
                )

    @asynccontextmanager
    async def session(self, scenario: Scenario, variants: Sequence[Variant]) -> AsyncIterator[None]:
        """Ask, save, and in the end put back. ConfigError before anything in the cluster has changed."""
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(KubeApi.from_kubeconfig(self._options.context))
            await api.probe()
            cni = make(self._options.cni, api)
            node = await guards.examine(api, cni, self._options, scenario, variants)
            place = Place(api, cni, self._options, node, new_run_id())
            stack.push_async_callback(self._end, place)
            await workspace.claim(api, self._options.namespace, place.run)
            await saved.write(api, self._options.namespace, cni.name, await cni.save())
            if await cni.ensure(self._options.image):
                self._say(f"{cni.name}: installed in {api.context}")
            self._place = place
            yield

    async def _end(self, place: Place) -> None:
        """Put back what was there and remove what is ours. What cannot be done is said with its remedy."""
        api, namespace = place.api, place.options.namespace
        remedy = f"loadgen clean --context {api.context} --namespace {namespace}"
        try:
            async with asyncio.timeout(PUT_BACK_LIMIT_S):
                # Only what this run claimed: the claim itself may have been refused.
                if await workspace.owner(api, namespace) == place.run:
                    await put_back(api, place.cni, namespace)
        except TimeoutError:
            raise HarnessError(f"{api.context}: not put back within {PUT_BACK_LIMIT_S:g} s; run: {remedy}") from None
        except asyncio.CancelledError:
            self._say(f"{api.context}: interrupted before all was put back; run: {remedy}")
            raise
        except (ConfigError, HarnessError) as error:
            raise HarnessError(f"{api.context}: not all was put back: {error}; then run: {remedy}") from error

    @asynccontextmanager
    async def deploy(self, scenario: Scenario, variant: Variant, log_dir: str) -> AsyncIterator[ClusterDeployment]:
        assert self._place is not None, "deploy is called within a session"
        deployment = ClusterDeployment(self._place, scenario, variant, Path(log_dir), self._say)
        async with AsyncExitStack() as stack:
            await deployment.build(stack)
            yield deployment


async def put_back(api: KubeApi, cni: Cni, namespace: str) -> None:
    """From what was saved in the cluster: the CNI as it was, our namespace gone. Idempotent."""
    was = await saved.read(api, namespace)
    if was is not None:
        await cni.restore(was.settings)
    await workspace.remove(api, namespace)


def new_run_id() -> str:
    """Unique among the runs that may ever meet in one cluster."""
    return os.urandom(4).hex()
