"""The report in a real browser: its script draws every panel and says nothing on the console."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from loadgen.report import html
from tests import factories
from tests.report.test_sources import results

pytestmark = pytest.mark.slow

QUIET = "--no-first-run --disable-background-networking --disable-component-update --disable-sync --disable-quic"


def opened(chromium: str, text: str, folder: Path) -> tuple[str, str]:
    """The page as it is once its script has run, and what the console said."""
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", *QUIET.split(), "--window-size=1280,1000"]
    command += [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def test_every_panel_is_drawn_and_the_console_is_silent(chromium: str, tmp_path: Path) -> None:
    text = html.render(factories.spiral(("before", "gc-only", "dns-only", "after")))
    dom, console = opened(chromium, text, tmp_path)
    panels = text.count('class="panel"')
    assert console == ""
    assert panels > 20
    assert dom.count("<canvas") == panels
    assert all(int(width) > 100 for width in re.findall(r'<canvas width="(\d+)"', dom))


def test_a_page_without_pictures_does_not_upset_the_script(chromium: str, tmp_path: Path) -> None:
    plan = factories.scenario()
    text = html.render(factories.results(plan, [factories.run(factories.info(plan, "before"), {})]))
    dom, console = opened(chromium, text, tmp_path)
    assert (console, dom.count("<canvas")) == ("", 0)


def test_a_clusters_panels_are_drawn_too(chromium: str, tmp_path: Path) -> None:
    text = html.render(results())
    dom, console = opened(chromium, text, tmp_path)
    assert console == ""
    assert dom.count("<canvas") == text.count('class="panel"') > 3
