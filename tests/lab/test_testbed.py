from pathlib import Path

import msgspec
import pytest

from loadgen.core.errors import ConfigError
from loadgen.core.model import Scenario
from loadgen.drivers import libc
from loadgen.kernel import support
from loadgen.lab import testbed
from loadgen.lab.state import LabState
from loadgen.scenarios import loader


@pytest.fixture(autouse=True)
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has everything: what is checked here are the scenarios."""
    monkeypatch.setattr(support, "require", lambda: None)
    monkeypatch.setattr(support, "available_memory", lambda: 8 << 30)


@pytest.mark.parametrize("name", loader.builtin_names())
def test_the_builtin_scenarios_fit_the_lab(name: str) -> None:
    assert testbed.check(loader.load(name)) is None


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("settings.cilium.bpf.ctTcpMax=16777216", "tables of 16,777,216 and 262,144 entries need about"),
        ("faults.leftovers.entries=5000000", "5,000,000 do not fit into a table of 4,194,304 entries"),
        ("settings.cilium.profile='1.99'", "1.99"),
        ("settings.resolver.options=nonsense", "variants.before.settings.resolver.options"),
        ("loads.lookups.names=['bad..name']", "loads.lookups.names"),
        ("settings.cilium.apiRateLimit.endpoint-crate={}", "endpoint-crate"),
        ("loads.pods.via=job", "loads.pods.via: job needs a cluster's Job controller"),
        ("loads.storm.targets=40000", "loads.storm.targets: the lab has at most 32,766 datanodes"),
    ],
)
def test_what_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch, override: str, says: str) -> None:
    monkeypatch.setattr(support, "available_memory", lambda: 2 << 30)
    with pytest.raises(ConfigError) as caught:
        testbed.check(loader.load("chaos", [override]))
    assert says in str(caught.value)


def test_a_libc_whose_program_was_not_built_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "FOLDER", Path("/nowhere"))
    with pytest.raises(ConfigError, match=r"loads\.lookups\.via: glibc: its lookup program was not built"):
        testbed.check(loader.load("dns-race", ["loads.lookups.via=glibc"]))


def emulated(scenario: Scenario, variant: str) -> str:
    made = testbed.LabDeployment(LabState(), scenario, scenario.variants[variant], testbed.PLUGIN.parent)
    return " | ".join(made.emulated)


def test_a_report_is_told_all_that_is_emulated() -> None:
    chaos = loader.load("chaos")
    before, after = emulated(chaos, "before"), emulated(chaos, "after")
    assert "agent is a model (profile 1.16)" in before
    assert "GC interval of 12h, as if it had drifted there" in before
    assert "drifted" not in after
    assert "nft rule drops it with probability 0.500%" in after
    assert "fill" in after
    assert "NodeLocal DNSCache is a model" in emulated(loader.load("dns-race"), "nodelocal")
    faultless = msgspec.structs.replace(chaos, faults={}, phases=())
    assert "nft rule" not in emulated(faultless, "before")


def test_the_environment_is_what_makes_runs_comparable() -> None:
    found = testbed.environment()
    assert found.keys() == {"kernel", "machine", "cpu", "cpus", "memory_gib", "python", "loadgen"}
    assert all(found.values())
