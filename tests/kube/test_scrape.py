from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadgen.core import pages
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.samples import Message, Reading
from loadgen.kube import scrape
from loadgen.kube.api import KubeApi
from loadgen.kube.cni import Cni, CniFacts
from loadgen.kube.scrape import OTHER_CNI_PODS, OTHER_PODS, Scraper
from tests.core.test_ciliummetrics import PAGE_1_16
from tests.core.test_pages import CONTAINERD_PAGE, COREDNS_PAGE, KUBELET_PAGE
from tests.kube.apiserver import status, talk

NODE = "worker"
KUBELET = f"/api/v1/nodes/{NODE}/proxy/metrics"
CONTAINERD = f"/api/v1/nodes/{NODE}:1338/proxy/v1/metrics"
PODS = "/api/v1/namespaces/kube-system/pods"


class Network:
    """A kube.cni.Cni as far as metrics go: the agent's pod on the node is `pod`, "" when there is none."""

    def __init__(self, pod: str = "cilium-1", version: str = "1.16.15") -> None:
        self.pod, self.version, self.asked = pod, version, 0

    async def facts(self) -> CniFacts:
        return CniFacts("cilium", self.version)

    async def agent_metrics(self, node: str) -> str | None:
        assert node == NODE
        self.asked += 1
        return f"{PODS}/{self.pod}:9962/proxy/metrics" if self.pod else None


class Cluster:
    """What the API server answers, path by path; a list gives one answer after the other."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            KUBELET: KUBELET_PAGE,
            CONTAINERD: CONTAINERD_PAGE,
            f"{PODS}/cilium-1:9962/proxy/metrics": PAGE_1_16,
            PODS: pods_named("coredns-a", "coredns-b"),
            f"{PODS}/coredns-a:9153/proxy/metrics": COREDNS_PAGE,
            f"{PODS}/coredns-b:9153/proxy/metrics": COREDNS_PAGE,
            "/api/v1/pods": pods_of_others(("1", False), ("2", True)),
        }
        self.queries: list[tuple[str, dict[str, str]]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.queries.append((request.path, dict(request.query)))
        if "watch" in request.query:
            return await self._watch(request)
        found = self.answers.get(request.path, status(404, "NotFound", f"{request.path} not found"))
        if isinstance(found, Iterator):
            found = next(found)
        if isinstance(found, str):
            return web.Response(text=found)
        return web.json_response(found) if isinstance(found, dict) else fresh(found)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        """Tells of a pod of others that comes and goes, and then nothing more."""
        response = web.StreamResponse()
        await response.prepare(request)
        pod = {"metadata": {"uid": "3", "resourceVersion": "9"}, "spec": {}}
        for kind in ("ADDED", "DELETED"):
            await response.write(json.dumps({"type": kind, "object": pod}).encode() + b"\n")
        await asyncio.Event().wait()
        return response


def fresh(answer: web.Response) -> web.Response:
    """A response can be sent once."""
    return web.Response(body=answer.body, status=answer.status, content_type="application/json")


def pods_named(*names: str) -> dict[str, Any]:
    return {"items": [{"metadata": {"name": name}} for name in names]}


def pods_of_others(*pods: tuple[str, bool]) -> dict[str, Any]:
    items = [{"metadata": {"uid": uid, "resourceVersion": "5"}, "spec": {"hostNetwork": host}} for uid, host in pods]
    return {"metadata": {"resourceVersion": "5"}, "items": items}


REFUSED = status(
    503, "ServiceUnavailable", "error trying to reach service: dial tcp 10.0.0.1:1338: connection refused"
)


def scraped(
    tmp_path: Path,
    cluster: Cluster,
    use: Callable[[Scraper, list[Reading]], Any],
    *,
    network: Network | None = None,
    thresholds: tuple[str, ...] = (),
) -> Any:
    """What `use` returns, given a Scraper and the readings that it has emitted so far."""

    async def conversation(api: KubeApi) -> Any:
        cni: Cni = network or Network()  # pyright: ignore[reportAssignmentType] - the two calls that count
        return await use(Scraper(api, NODE, cni, thresholds, "1a2b"), [])

    return talk(tmp_path, cluster.answer, conversation)


def look(
    tmp_path: Path, cluster: Cluster, *, times: int = 1, network: Network | None = None
) -> list[dict[str, float]]:
    """Series and values of each of `times` looks."""

    async def use(scraper: Scraper, _: list[Reading]) -> list[dict[str, float]]:
        found = []
        for _i in range(times):
            emitted: list[Message] = []
            await scraper.look(emitted.append)
            assert all(isinstance(m, Reading) for m in emitted)
            found.append({m.series: m.value for m in emitted if isinstance(m, Reading)})
        return found

    return scraped(tmp_path, cluster, use, network=network)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "RETRY_S", 0.0)
    monkeypatch.setattr(scrape, "EVERY_S", 0.02)


# --- what is read ------------------------------------------------------------------------------------------------


def test_one_look_reads_every_source(tmp_path: Path) -> None:
    cluster = Cluster()
    (found,) = look(tmp_path, cluster)
    assert found["kubelet.run_podsandbox|count"] == 29
    assert found["containerd.set_up_pod|count"] == 7
    assert found["cilium.creates_refused"] == 144
    assert (found["dns.server.a"], found["dns.server.aaaa"]) == (10, 0)  # two servers as one
    assert OTHER_PODS not in found  # they are watched while a run goes on, and not before
    assert 0 <= found["kubelet" + pages.TOOK] < 5


def test_a_source_that_fails_once_is_left_out_of_that_look(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.answers[KUBELET] = iter([KUBELET_PAGE, status(500, "", "boom"), "garbage", KUBELET_PAGE])
    looks = look(tmp_path, cluster, times=4)
    assert ["kubelet.run_podsandbox|count" in found for found in looks] == [True, False, False, True]
    assert all("containerd.set_up_pod|count" in found for found in looks)


def test_the_servers_counts_go_on_growing_when_one_restarts(tmp_path: Path) -> None:
    cluster = Cluster()

    def page(queries: int) -> str:
        return COREDNS_PAGE.replace('type="A",view="",zone="."} 4', f'type="A",view="",zone="."}} {queries - 1}')

    cluster.answers[f"{PODS}/coredns-a:9153/proxy/metrics"] = iter([page(10), page(15), page(3)])
    cluster.answers[f"{PODS}/coredns-b:9153/proxy/metrics"] = iter([page(5), status(503), page(6)])
    totals = [found.get("dns.server.a") for found in look(tmp_path, cluster, times=3)]
    # The second look is none: a sum over one of two servers. Then coredns-a has begun anew.
    assert totals == [15, None, 15 + 3 + 1]


def test_pods_of_others_are_counted_however_short_they_live(tmp_path: Path) -> None:
    cluster = Cluster()

    async def use(scraper: Scraper, found: list[Reading]) -> list[tuple[float, float]]:
        running = asyncio.create_task(scraper.run(found.append))  # pyright: ignore[reportArgumentType]
        while not any(r.series == OTHER_PODS and r.value == 3 for r in found):
            assert not running.done()
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        every = [[r.value for r in found if r.series == name] for name in (OTHER_PODS, OTHER_CNI_PODS)]
        return list(zip(*every, strict=True))

    counts = scraped(tmp_path, cluster, use)
    assert counts[-1] == (3, 2)
    assert counts == sorted(counts)
    selected = {(q["fieldSelector"], q["labelSelector"]) for path, q in cluster.queries if path == "/api/v1/pods"}
    assert selected == {("spec.nodeName=worker", "loadgen/run!=1a2b")}


def test_others_who_cannot_be_watched_are_not_known(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.answers["/api/v1/pods"] = status(403, "Forbidden", "no")

    async def use(scraper: Scraper, found: list[Reading]) -> set[str]:
        running = asyncio.create_task(scraper.run(found.append))  # pyright: ignore[reportArgumentType]
        while sum(r.series == "kubelet|started" for r in found) < 5:
            assert not running.done()
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return {r.series for r in found}

    assert OTHER_PODS not in scraped(tmp_path, cluster, use)


def test_an_agent_that_was_restarted_is_found_again(tmp_path: Path) -> None:
    cluster, network = Cluster(), Network()
    cluster.answers[f"{PODS}/cilium-1:9962/proxy/metrics"] = iter([PAGE_1_16, status(404, "NotFound", "gone")])
    cluster.answers[f"{PODS}/cilium-2:9962/proxy/metrics"] = PAGE_1_16

    async def use(scraper: Scraper, _: list[Reading]) -> list[bool]:
        found = []
        for pod in ("cilium-1", "cilium-2", "cilium-2"):
            network.pod = pod
            emitted: list[Message] = []
            await scraper.look(emitted.append)
            found.append(any(getattr(m, "series", "") == "cilium.limiter.wait" for m in emitted))
        return found

    assert scraped(tmp_path, cluster, use, network=network) == [True, False, True]
    assert network.asked == 2


def test_the_agents_page_is_read_by_its_version(tmp_path: Path) -> None:
    cluster = Cluster()
    page = PAGE_1_16 + 'cilium_datapath_conntrack_gc_interval_seconds{global="global"} 450\n'
    cluster.answers[f"{PODS}/cilium-1:9962/proxy/metrics"] = page
    (old,) = look(tmp_path, cluster, network=Network(version="1.16.15"))
    (new,) = look(tmp_path, cluster, network=Network(version="1.18.3"))
    assert "cilium.gc.interval" not in old
    assert new["cilium.gc.interval"] == 450


# --- what is there -----------------------------------------------------------------------------------------------


def described(
    tmp_path: Path, cluster: Cluster, network: Network | None = None, thresholds: tuple[str, ...] = ()
) -> dict[str, str]:
    async def use(scraper: Scraper, _: list[Reading]) -> dict[str, str]:
        return await scraper.describe()

    return scraped(tmp_path, cluster, use, network=network, thresholds=thresholds)


def test_the_environment_says_once_which_sources_there_are(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.answers[CONTAINERD] = REFUSED
    cluster.answers[PODS] = pods_named()
    assert described(tmp_path, cluster, Network(pod="")) == {
        "kubelet metrics": "read",
        "containerd metrics": "none: nothing listens there",
        "agent metrics": "none: the network has none",
        "CoreDNS metrics": "none: no pod k8s-app=kube-dns in kube-system",
    }
    assert [path for path, _ in cluster.queries].count(CONTAINERD) == 1  # what will not pass is not tried again


def test_what_may_pass_is_tried_again(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.answers[KUBELET] = iter([status(502, "", "bad gateway"), KUBELET_PAGE])
    assert described(tmp_path, cluster)["kubelet metrics"] == "read"


def test_a_source_that_is_forbidden_is_absent_unless_it_is_asked_for(tmp_path: Path) -> None:
    cluster = Cluster()
    message = (
        'nodes "w" is forbidden: User "x" cannot get resource "nodes/proxy" in API group "" at the cluster scope'
    )
    cluster.answers[KUBELET] = status(403, "Forbidden", message)
    assert described(tmp_path, cluster)["kubelet metrics"].startswith(
        "none: context test: user x may not get nodes/p"
    )
    with pytest.raises(ConfigError, match="node worker: no metrics of kubelet, on which a threshold rests: context"):
        described(tmp_path, cluster, thresholds=("kubelet.sandbox_errors max < 1",))


# --- a run -------------------------------------------------------------------------------------------------------


def test_a_run_looks_again_and_again_and_once_more_at_its_end(tmp_path: Path) -> None:
    cluster = Cluster()

    async def use(scraper: Scraper, found: list[Reading]) -> tuple[int, int]:
        running = asyncio.create_task(scraper.run(found.append))  # pyright: ignore[reportArgumentType]
        while sum(r.series == "kubelet|started" for r in found) < 3:
            assert not running.done()
            await asyncio.sleep(0)
        before = sum(r.series == "kubelet|started" for r in found)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return before, sum(r.series == "kubelet|started" for r in found)

    before, after = scraped(tmp_path, cluster, use)
    assert after > before >= 3


def test_a_source_that_stays_silent_ends_the_run_only_if_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "PATIENCE_S", 0.05)
    cluster = Cluster()
    cluster.answers[KUBELET] = status(500, "", "no kubelet here")

    async def until_it_ends(scraper: Scraper, found: list[Reading]) -> None:
        await scraper.run(found.append)  # pyright: ignore[reportArgumentType]

    with pytest.raises(HarnessError, match=r"node worker: no metrics of kubelet for \d+ s, and a threshold rests on"):
        scraped(tmp_path, cluster, until_it_ends, thresholds=("kubelet.sandbox_errors max < 1",))

    async def for_a_while(scraper: Scraper, found: list[Reading]) -> int:
        running = asyncio.create_task(scraper.run(found.append))  # pyright: ignore[reportArgumentType]
        await asyncio.wait([running], timeout=0.3)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return len(found)

    assert scraped(tmp_path, cluster, for_a_while) > 0
