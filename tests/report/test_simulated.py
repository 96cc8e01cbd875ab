"""The HTML report of a simulation."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.report import simulated
from tests.report.test_browser import opened
from tests.simulation.simulations import simulation


def test_page_has_every_policy_and_type_and_escapes_their_words() -> None:
    text = simulated.render(simulation(), ("before: 2 µs <an entry>",))
    assert "tiny &lt;&amp;&gt; fleet" in text
    assert "a &lt;b&gt;burst&lt;/b&gt;" in text
    assert "before: 2 µs &lt;an entry&gt;" in text
    assert "one minute &lt;now&gt;" in text
    assert "http://" not in text.split("</header>")[0]
    assert "fixed does best: 0 of 40 pods late" in text
    assert text.count("<h2>Nodes of type") == 2


def test_charts_tell_the_numbers_of_the_simulation() -> None:
    found = simulation()
    chart = simulated.table_chart(found, "one")
    assert [panel.title for panel in chart.panels] == ["current", "fixed"]
    assert max(chart.panels[0].lines[0].y) == pytest.approx(300 * 3610, rel=0.4)
    assert max(chart.panels[1].lines[0].y) < 300 * 90
    assert max(simulated.waiting_chart(found, "one").panels[0].lines[0].y) == 20
    tail = simulated.tail_chart(found)
    assert [line.name for line in tail.panels[0].lines] == ["current", "fixed"]
    assert max(tail.panels[0].lines[0].x) > 10 > max(tail.panels[0].lines[1].x)


@pytest.mark.slow
def test_every_panel_is_drawn_and_the_console_is_silent(chromium: str, tmp_path: Path) -> None:
    text = simulated.render(simulation())
    dom, console = opened(chromium, text, tmp_path)
    assert console == ""
    assert dom.count("<canvas") == text.count('class="panel"') > 10
