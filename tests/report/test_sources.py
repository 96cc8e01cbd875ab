from pathlib import Path

from loadgen.core.histogram import Bounds
from loadgen.core.results import Results, analyse
from loadgen.core.samples import Mark
from loadgen.report import html, junit, markdown, sources, terminal, view
from tests import clusters, factories
from tests.clusters import REFUSED, TIMED_OUT, Pod, burst, node, watched
from tests.golden import assert_golden

GOLDEN = Path(__file__).parent / "golden"
AT = [0.0, 12.0, 20.0, 40.0, 390.0]


def agent() -> dict[str, object]:
    return {
        "cilium|started": factories.series(AT, [5.0] * 5),
        "cilium.limiter.wait": factories.series(AT, [0, 2.5, 26.7, 12.0, 3.0]),
        "cilium.creates_refused": factories.series(AT, [0, 0, 3, 6, 6]),
        "cilium.regeneration.total|sum": factories.series(AT, [0, 0, 60, 110, 110]),
        "cilium.regeneration.total|count": factories.series(AT, [0, 0, 20, 50, 50]),
        "cilium.regeneration.waitingForCTClean|sum": factories.series(AT, [0, 0, 50, 100, 100]),
        "cilium.regeneration.waitingForCTClean|count": factories.series(AT, [0, 0, 20, 50, 50]),
        "ct.tcp.entries": factories.series(AT, [1e6] * 5),
    }


def results(pods: list[Pod] | None = None, kubelet: list[Pod] | None = None, cni: str = "cilium 1.18.3") -> Results:
    mine = pods or burst()
    environment = {**factories.ENVIRONMENT, "cni": cni}
    data = clusters.run(
        watched(mine),
        node(kubelet or mine, **agent()),  # pyright: ignore[reportArgumentType]
        marks=[Mark(factories.ns(31.5), "note", "pods", "pods wait for room on w: Insufficient memory")],
        environment=environment,
    )
    return analyse(clusters.plan(), 7, "kind", factories.STARTED, {"01-v": data})


def test_bounds_as_people_read_them() -> None:
    assert sources.bounds(Bounds(7.62939453125, 19.073486328125)) == "7.629s to 19.07s"
    assert sources.bounds(Bounds(745.05, float("inf"))) == ">= 12m25s"
    assert sources.bounds(Bounds(2.5, 2.5)) == "2.5s"


def test_a_row_a_source_with_its_error() -> None:
    table = sources.table(view.variants(results()))
    assert table is not None
    assert [row[0].text for row in table.rows] == [
        "01-v, watch, whole pod",
        "01-v, watch, attempt",
        "01-v, watch, condition",
        "01-v, kubelet",
        "01-v, containerd",
        "01-v, stamps",
    ]
    kubelet = [cell.text for cell in table.rows[3]]
    assert kubelet[1:3] == ["55", "5"]
    assert " to " in kubelet[4]
    assert "failed attempts are in it (5 here)" in kubelet[-1]
    assert "run_podsandbox" in table.rows[3][0].title
    assert {len(row) for row in table.rows} == {len(table.columns)}


def test_failures_are_counted_by_kind_in_every_variant() -> None:
    pods = [*burst(), Pod((91.0, TIMED_OUT), (2.0, ""))]
    table = sources.failures(view.variants(results(pods)))
    assert table is not None
    assert [[cell.text for cell in row] for row in table.rows] == [[REFUSED, "5"], [TIMED_OUT, "1"]]
    assert sources.failures(view.variants(results([Pod((1.0, ""))]))) is None


def test_what_the_run_noted_is_in_the_report() -> None:
    table = sources.notes(view.variants(results()))
    assert table is not None
    assert [cell.text for cell in table.rows[0]] == ["01-v", "31.5 s", "pods wait for room on w: Insufficient memory"]


def test_what_the_version_does_not_tell() -> None:
    table = sources.untold(results())
    assert table is not None
    assert {row[0].text for row in table.rows} == {"1.18.3"}
    assert any("its sum stays 0" in row[2].text for row in table.rows)
    assert sources.untold(results(cni="model 1.16")) is None
    assert sources.untold(factories.spiral()) is None


def test_the_lab_has_nothing_of_it() -> None:
    variants = view.variants(factories.spiral())
    assert (sources.table(variants), sources.failures(variants), sources.notes(variants)) == (None, None, None)
    assert [*sources.lines(variants), *sources.failure_lines(variants)] == []


def test_the_terminal_of_a_cluster() -> None:
    text = terminal.plain(results())
    assert text.replace("─", "").isascii()
    assert_golden(GOLDEN / "terminal-cluster.txt", text)


def test_a_contradiction_is_seen_in_every_report() -> None:
    found = results(burst(), [*burst(), *[Pod((1.0, ""))] * 5])
    doubt = "the kubelet counts 55 sandboxes set up, by our watch 50 came up"
    for text in (terminal.plain(found, width=400), html.render(found), junit.render(found), markdown.render(found)):
        assert doubt in text
        assert "INCONCLUSIVE" in text


def test_an_absent_source_is_named() -> None:
    data = clusters.run({"sandbox.setup": watched(burst())["sandbox.setup"]}, {})
    found = analyse(clusters.plan(), 7, "kind", factories.STARTED, {"01-v": data})
    lines = list(sources.lines(view.variants(found)))
    assert "01-v, kubelet: absent: not read before and after the measured phases" in lines
    assert lines[-1].startswith("01-v: nothing but our own watch tells how long sandboxes took")
    assert "absent: no pod has the stamp of that condition" in html.render(found)
    assert "01-v, stamps: absent" in junit.render(found)
