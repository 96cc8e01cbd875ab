from typing import Any

import pytest

from loadgen.core.errors import ConfigError
from loadgen.kube import guards
from loadgen.kube.options import ClusterOptions
from loadgen.scenarios import loader

CHAOS = loader.load("chaos")
QUIET = loader.load("dns-race", ["faults={}", "phases.lookups.faults=[]"])


def item(name: str, *, ready: bool = True, cordoned: bool = False, control: bool = False, kind: bool = True) -> Any:
    return {
        "metadata": {"name": name, "labels": {"node-role.kubernetes.io/control-plane": ""} if control else {}},
        "spec": {"unschedulable": cordoned, "providerID": f"kind://docker/x/{name}" if kind else f"aws:///{name}"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
            "allocatable": {"pods": "110"},
            "capacity": {"cpu": "2"},
            "nodeInfo": {"kubeletVersion": "v1.34.4", "kernelVersion": "6.18", "containerRuntimeVersion": "x"},
        },
    }


def nodes(*items: Any) -> list[guards.Node]:
    return [guards.read_node(each) for each in items]


def test_the_first_ready_worker_is_the_node_under_test() -> None:
    there = nodes(item("a-control", control=True), item("w2"), item("w1", ready=False), item("w3", cordoned=True))
    assert guards.choose_node(there, None).name == "w2"


def test_a_control_plane_serves_where_there_is_nothing_else() -> None:
    assert guards.choose_node(nodes(item("only", control=True)), None).name == "only"


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("w9", "--node w9: no such node; there are w1, w2, w3"),
        ("w1", "--node w1: it is not Ready"),
        ("w3", "--node w3: it is cordoned; kubectl uncordon w3"),
    ],
)
def test_a_wanted_node_must_be_able_to_take_pods(wanted: str, says: str) -> None:
    there = nodes(item("w1", ready=False), item("w2"), item("w3", cordoned=True))
    with pytest.raises(ConfigError, match=says):
        guards.choose_node(there, wanted)


def test_no_usable_node_says_the_state_of_each() -> None:
    with pytest.raises(ConfigError, match=r"w1 \(not Ready\), w2 \(cordoned\)"):
        guards.choose_node(nodes(item("w1", ready=False), item("w2", cordoned=True)), None)


def test_a_context_that_is_not_kind_is_not_changed_without_its_name() -> None:
    foreign = nodes(item("w1", kind=False), item("w2"))
    with pytest.raises(ConfigError, match=r"prod is no kind cluster.*--cni cilium.*leftovers.*--allow-context prod"):
        guards.refuse_foreign("prod", foreign, ClusterOptions(), CHAOS)
    with pytest.raises(ConfigError, match="fault leftovers"):
        guards.refuse_foreign("prod", foreign, ClusterOptions(cni="none", allow_context="other"), CHAOS)
    guards.refuse_foreign("prod", foreign, ClusterOptions(allow_context="prod"), CHAOS)
    guards.refuse_foreign("prod", foreign, ClusterOptions(cni="none"), QUIET)
    guards.refuse_foreign("kind-loadgen", nodes(item("w1")), ClusterOptions(), CHAOS)


def test_room_is_counted_for_generators_and_bursts() -> None:
    assert guards.pods_needed(CHAOS) == 2 + 1 + 50 + guards.pods_needed(QUIET) - 1
