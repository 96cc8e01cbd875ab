"""`up`, `down`, `bundle`: kind clusters, and what a machine without registries needs to make one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from loadgen.cli.app import app, say, stdout
from loadgen.cli.run import BundleOpt, CiliumOpt, CniOpt, ConfigOpt, ImageOpt, NodeImageOpt
from loadgen.kube.options import DEFAULTS, ClusterOptions, kind_name

BundleOut = Annotated[Path, typer.Option("--out", help="Folder to make; must not exist yet.")]
SwitchOpt = Annotated[bool, typer.Option("--switch-context", help="Make the new cluster the current context.")]


@app.command()
def up(
    cni: CniOpt = "cilium",
    kind_config: ConfigOpt = None,
    node_image: NodeImageOpt = None,
    cilium_version: CiliumOpt = None,
    bundle: BundleOpt = None,
    image: ImageOpt = None,
    switch_context: SwitchOpt = False,
) -> None:
    """Make a kind cluster with the CNI and our image in it; wait until it is really ready."""
    from loadgen.kube.kindbed import bring_up

    options = ClusterOptions(
        cni=cni,
        kind_config=kind_config,
        node_image=node_image,
        cilium_version=cilium_version,
        bundle=bundle,
        image=image or DEFAULTS.image,
    )
    context = asyncio.run(bring_up(options, say, switch_context=switch_context))
    stdout().print(f"{context} is up: loadgen chaos --testbed kind --cni {cni}", markup=False)


@app.command()
def down() -> None:
    """Delete the kind cluster of this name (KIND_CLUSTER_NAME, default loadgen)."""
    from loadgen.kube.kindbed import take_down

    name = kind_name()
    there = asyncio.run(take_down(name))
    stdout().print(f"{name}: deleted" if there else f"no kind cluster {name}; nothing was deleted", markup=False)


@app.command("bundle")
def bundle_(out: BundleOut, cilium_version: CiliumOpt = None, image: ImageOpt = None) -> None:
    """Collect chart and images with which `up` and `--testbed kind` work on a machine without registries."""
    from loadgen.kube.kindbed import make_bundle

    options = ClusterOptions(cilium_version=cilium_version, image=image or DEFAULTS.image)
    asyncio.run(make_bundle(options, out, say))
    stdout().print(f"{out}: a bundle for --bundle", markup=False)
