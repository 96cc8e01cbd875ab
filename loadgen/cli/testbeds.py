"""Opens the place where a scenario runs. Each testbed is imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable

from loadgen.cli.app import say
from loadgen.core.history import Ending
from loadgen.core.model import Scenario
from loadgen.core.ports import Testbed
from loadgen.kube.options import ClusterOptions

Work = Callable[[Testbed], Ending]


def within(name: str, options: ClusterOptions, work: Work) -> Ending:
    """Do `work` on the testbed `name`; whatever happens, nothing of ours is left of it."""
    return _in_lab(work) if name == "lab" else _on_cluster(name, options, work)


def touches(name: str, options: ClusterOptions, scenario: Scenario) -> tuple[str, ...]:
    """What a run would change outside the namespaces that it makes itself, a sentence each."""
    if name == "lab":
        return ()
    from loadgen.kube.touched import touches as of_cluster

    return of_cluster(name, options, scenario)


def _in_lab(work: Work) -> Ending:
    from loadgen.kernel import support
    from loadgen.lab.state import LabState, exclusive, remove_dead
    from loadgen.lab.testbed import Lab

    support.require_root()
    with exclusive():
        for dead in remove_dead():
            say(f"removed what a killed run left: {dead.id}")
        state = LabState()
        state.claim()
        try:
            return work(Lab(state))
        finally:
            state.release()


def _on_cluster(name: str, options: ClusterOptions, work: Work) -> Ending:
    from loadgen.kube.kindbed import KindTestbed
    from loadgen.kube.testbed import ClusterTestbed

    testbed = ClusterTestbed(options, say) if name == "cluster" else KindTestbed(options, say)
    return work(testbed)
