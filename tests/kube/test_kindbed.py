from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loadgen.core.errors import ConfigError
from loadgen.core.model import Bpf, Cilium, Settings, Variant
from loadgen.kube import hostchecks
from loadgen.kube.kindbed import bring_up, largest
from loadgen.kube.options import ClusterOptions
from tests.kube.shelltools import tool


def variant(tcp: int, other: int) -> Variant:
    return Variant(settings=Settings(cilium=Cilium(bpf=Bpf(tcp, other))))


def test_a_node_has_to_bear_the_largest_tables_of_all_variants() -> None:
    assert largest([variant(4096, 2048), variant(1024, 8192)]) == Bpf(4096, 8192)
    assert largest([]) == Bpf()


def test_tables_that_do_not_fit_are_refused_before_anything_is_made(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostchecks, "INOTIFY_LEAST", {})  # not what this machine may lack
    tool(tools, "docker", 'echo \'{"ServerVersion": "28.2.2", "CgroupVersion": "2"}\'')
    made = tools / "made"
    tool(tools, "kind", f'case "$1" in version) echo "kind v0.33.0";; create) echo >{made};; esac')
    options = ClusterOptions(cni="model", node_image="mine:1")
    largest_there_are = Bpf(1 << 30, 1 << 30)
    with pytest.raises(ConfigError, match=r"memory: .* GiB needed for 3 nodes"):
        asyncio.run(bring_up(options, lambda _: None, tables=largest_there_are))
    assert not made.exists()
