"""Puts a cluster back as it was before a run that was killed: from what that run had saved in the cluster."""

from __future__ import annotations

from loadgen.kube import saved, workspace
from loadgen.kube.api import KubeApi
from loadgen.kube.cni import make
from loadgen.kube.nodehelper import heal_all


async def clean_cluster(context: str, namespace: str) -> list[str]:
    """What was done, a sentence each; none when nothing was left. ConfigError when the cluster cannot be asked."""
    async with KubeApi.from_kubeconfig(context) as api:
        await api.probe()
        holder = await workspace.owner(api, namespace)
        if holder is None:
            return []
        done = [f"{line} (run {holder})" for line in await heal_all(api, namespace)]
        was = await saved.read(api, namespace)
        if was is not None:
            await make(was.cni, api).restore(was.settings)
            done.append(f"{was.cni}: put back as before run {holder}")
        await workspace.remove(api, namespace)
        done.append(f"namespace {namespace}: removed, with everything that run {holder} had in it")
        return done
