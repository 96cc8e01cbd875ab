"""The driver process of a generator pod: which driver, and that the pod's resolver is the one asked for."""

from typing import get_args

import msgspec
import pytest

from loadgen.core.errors import HarnessError
from loadgen.core.model import Dns, Resolver, Storm, StubName
from loadgen.drivers.dns import DnsDriver
from loadgen.drivers.libc import LibcDriver
from loadgen.drivers.pairs import PairsDriver
from loadgen.drivers.storm import StormDriver
from loadgen.kube import worker
from loadgen.kube.exchange import Assignment, Targets
from loadgen.kube.worker import WorkerSpec, check_resolver, driver

RESOLVER = Resolver("timeout:1 single-request-reopen", ("a.local", "b.local"))
# As a kubelet writes it: options in any order.
FILE = "search a.local b.local\nnameserver 10.96.0.10\noptions single-request-reopen timeout:1\n"


def assignment(load: Storm | Dns, resolver: Resolver = RESOLVER) -> Assignment:
    return Assignment(load=load, targets=Targets(("10.0.0.1",), 9, 500), resolver=resolver, server="10.96.0.10")


@pytest.mark.parametrize(
    ("load", "kind"),
    [(Storm(), StormDriver), (Dns(), DnsDriver), (Dns(via="glibc"), LibcDriver), (Dns(via="fast"), PairsDriver)],
)
def test_each_load_has_its_driver(load: Storm | Dns, kind: type, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    conf = tmp_path / "resolv.conf"
    conf.write_text(FILE)
    monkeypatch.setattr(worker, "RESOLV_CONF", conf)
    spec = WorkerSpec(assignment=assignment(load), phase="main", source="x@pod", seed=1)
    assert isinstance(driver(spec), kind)


def test_the_resolver_that_was_asked_for_passes() -> None:
    assert check_resolver(FILE, assignment(Dns())) is None
    assert check_resolver("nameserver 10.96.0.10\n", assignment(Dns(), Resolver("", ()))) is None


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (FILE.replace("timeout:1", "ndots:5 timeout:1"), "ndots 5 instead of 1"),
        (FILE.replace("timeout:1", ""), "timeout 5 instead of 1"),
        (FILE.replace("b.local", "c.local"), r"search .*c\.local"),
        (FILE.replace("10.96.0.10", "10.96.0.11"), r"servers \('10\.96\.0\.11',\) instead of"),
        (FILE.replace("single-request-reopen", "single-request"), "single_request_reopen False instead of True"),
    ],
)
def test_any_other_is_a_clear_failure(changed: str, why: str) -> None:
    with pytest.raises(HarnessError, match=why):
        check_resolver(changed, assignment(Dns()))


@pytest.mark.parametrize("stub", get_args(StubName))
def test_a_pod_s_file_is_read_as_the_scenario_s_resolver_reads_it(stub: StubName) -> None:
    asked = msgspec.structs.replace(RESOLVER, stub=stub)
    assert check_resolver(FILE, assignment(Dns(), asked)) is None
    with pytest.raises(HarnessError, match="timeout"):
        check_resolver(FILE.replace("timeout:1", "timeout:3"), assignment(Dns(), asked))
