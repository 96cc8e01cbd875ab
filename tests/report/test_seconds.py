import numpy as np

from loadgen.core.results import Results, analyse
from loadgen.report import html, seconds, view
from tests import clusters, factories
from tests.clusters import REFUSED, Pod, burst, watched
from tests.report.test_sources import results


def chart_of(found: Results):
    return seconds.latency_chart(found.scenario, view.variants(found))


def test_sandboxes_stand_where_they_ended_over_the_means_of_the_node() -> None:
    found = results()
    chart = chart_of(found)
    assert chart is not None
    (panel,) = chart.panels
    assert {line.name for line in panel.lines} == {
        "a CNI ADD, mean",
        "waiting for CT clean, mean",
        "wait in the API limiter, mean",
    }
    (points,) = panel.points
    rows = found.runs[0].data.samples["sandbox.setup"].rows
    assert sorted(points.x) == np.sort(np.round((rows["done_ns"] - factories.START_NS) / 1e9, 3)).tolist()
    waits = next(line for line in panel.lines if line.name.startswith("wait in the API"))
    assert max(waits.y) == 26.7
    assert chart.y.high > 26.7
    assert "the longest sandbox" in chart.alt


def test_pods_that_did_not_come_up_are_open() -> None:
    chart = chart_of(results([*burst(), Pod((200.0, "still under way"))]))
    assert chart is not None
    assert [(p.symbol, len(p.x)) for p in chart.panels[0].points] == [("dot", 50), ("open", 1)]


def test_refusals_are_spread_over_the_seconds_between_looks() -> None:
    found = results()
    chart = seconds.refusal_chart(found.scenario, view.variants(found))
    assert chart is not None
    refused, failed = chart.panels[0].lines
    assert max(refused.y) == 3 / 8  # 3 between the looks at 12 s and at 20 s
    assert sum(failed.y) == 5
    assert "6 429s, 5 failed attempts" in chart.alt


def test_no_picture_of_refusals_that_did_not_happen() -> None:
    data = clusters.run(watched([Pod((1.0, ""))] * 3), {})
    found = analyse(clusters.plan(), 7, "kind", factories.STARTED, {"01-v": data})
    assert seconds.refusal_chart(found.scenario, view.variants(found)) is None
    assert chart_of(found) is None
    refused = clusters.run(watched([Pod((1.0, REFUSED), (1.0, ""))] * 3), {})
    found = analyse(clusters.plan(), 7, "kind", factories.STARTED, {"01-v": refused})
    assert seconds.refusal_chart(found.scenario, view.variants(found)) is not None


def test_the_page_has_them_on_a_cluster_and_not_in_the_lab() -> None:
    assert 'data-chart="seconds"' in html.render(results())
    assert 'data-chart="refusals"' in html.render(results())
    lab = html.render(factories.spiral())
    assert 'data-chart="seconds"' not in lab
    assert 'data-chart="refusals"' not in lab
