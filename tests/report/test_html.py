from __future__ import annotations

import hashlib
import json
import re
from html.parser import HTMLParser
from importlib import resources

import msgspec
import pytest

from loadgen.core.results import Results
from loadgen.report import html
from tests import factories

# The files of npm package uplot 1.6.32 as published.
ASSETS = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
VOID = {"meta", "link", "br", "hr", "img", "input"}
FACTORIAL = ("before", "gc-only", "dns-only", "after")


class Page(HTMLParser):
    """Checks that elements nest, and collects attributes, ids and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> does not close what is open"

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        (self.scripts if inside == "script" else [] if inside == "style" else self.words).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def page(results: Results) -> Page:
    return Page(html.render(results))


PAGE = page(factories.spiral())


def test_nothing_is_fetched_from_anywhere() -> None:
    links = [attrs[name] for _, attrs in PAGE.elements for name in ("src", "href", "action", "data") if name in attrs]
    assert all(str(link).startswith(("#", "data:")) for link in links)
    assert {"default-src 'none'"} <= {
        str(m.get("content")).split(";")[0] for m in PAGE.all("meta") if m.get("http-equiv")
    }
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest|import\(", html.render(factories.spiral()))


def test_every_link_of_the_page_leads_somewhere() -> None:
    ids = [str(attrs["id"]) for _, attrs in PAGE.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {str(a["href"])[1:] for a in PAGE.all("a")} <= set(ids)


def test_every_picture_has_its_words_and_every_panel_its_data() -> None:
    pictures = json.loads(PAGE.scripts[0])
    images = [attrs for attrs in PAGE.all("div") if attrs.get("role") == "img"]
    assert len(images) == len(pictures) > 5
    assert all(len(str(attrs["aria-label"])) > 40 for attrs in images)
    panels = [(str(a["data-chart"]), int(str(a["data-panel"]))) for a in PAGE.all("div") if "data-chart" in a]
    assert sorted(panels) == sorted((name, i) for name, c in pictures.items() for i in range(len(c["panels"])))


def test_it_says_what_the_run_proves_and_what_it_does_not() -> None:
    results = factories.spiral()
    for said in (
        "before broke its thresholds, as it must; after held every one",
        results.scenario.hypothesis,
        results.scenario.proves,
        results.scenario.limits,
        *factories.EMULATED,
        "seed 7",
        factories.ENVIRONMENT["kernel"],
        "loadgen chaos --seed 7",
        "≥\N{NO-BREAK SPACE}1m30s",
        "31 × agent timeout 90s",
    ):
        assert said.replace("\N{NO-BREAK SPACE}", " ") in PAGE.text.replace("\N{NO-BREAK SPACE}", " ")


def test_a_verdict_is_a_word_and_not_a_colour_alone() -> None:
    assert ("p", {"class": "verdict pass"}) in PAGE.elements
    assert PAGE.text.count("FAIL") >= 6


def test_variants_that_were_left_out_are_named() -> None:
    plan = factories.scenario(FACTORIAL)
    results = factories.results(plan, [factories.spiral_run(plan, name) for name in ("before", "after")])
    assert "Not run here: gc-only, dns-only." in page(results).text


NASTY = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>\"'&{{ 7*7 }}"


def test_text_from_outside_is_text() -> None:
    results = factories.spiral()
    plan = msgspec.structs.replace(results.scenario, hypothesis=NASTY, proves=NASTY)
    renamed = [
        r._replace(
            name=NASTY,
            data=r.data._replace(
                info=msgspec.structs.replace(
                    r.data.info, argv=(NASTY,), environment={NASTY: NASTY}, scenario={"x": NASTY}
                ),
                marks=tuple(msgspec.structs.replace(m, name=NASTY) if m.name == "storm" else m for m in r.data.marks),
            ),
        )
        for r in results.runs
    ]
    verdict = msgspec.structs.replace(
        results.verdict,
        scenario=NASTY,
        variants=tuple(msgspec.structs.replace(v, why=NASTY, emulated=(NASTY,)) for v in results.verdict.variants),
    )
    found = page(results._replace(scenario=plan, runs=renamed, verdict=verdict))
    assert [set(attrs) for attrs in found.all("script")] == [{"type", "id"}, set(), set()]
    assert found.all("img") == []
    assert NASTY in "".join(found.words)
    bands = json.loads(found.scripts[0])["ct"]["panels"][0]["bands"]
    assert bands[0]["name"] == NASTY


@pytest.mark.slow
@pytest.mark.parametrize("variants", [("before", "after"), FACTORIAL])
def test_a_run_of_real_size_stays_below_two_megabytes(variants: tuple[str, ...]) -> None:
    text = html.render(factories.realistic(variants, lookups=100_000))
    assert len(text.encode()) < 2_000_000
    assert "of 100,000 points" in text


@pytest.mark.slow
def test_repeats_stay_below_two_megabytes_too() -> None:
    plan = factories.scenario()
    one = factories.realistic()
    runs = [r.data._replace(info=msgspec.structs.replace(r.data.info, repeat=i)) for i in range(5) for r in one.runs]
    assert len(html.render(factories.results(plan, runs)).encode()) < 2_000_000


def test_a_run_that_left_nothing_still_has_a_report() -> None:
    plan = factories.scenario()
    found = page(factories.results(plan, [factories.run(factories.info(plan, "before"), {})]))
    assert "INCONCLUSIVE" in found.text
    assert "the run was cut short (killed)" in found.text
    assert json.loads(found.scripts[0]) == {}


def test_the_same_results_make_the_same_page() -> None:
    assert html.render(factories.spiral()) == html.render(factories.spiral())


@pytest.mark.parametrize("name", ASSETS)
def test_the_charting_library_is_what_its_readme_says(name: str) -> None:
    content = (resources.files("loadgen.report") / "assets" / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == ASSETS[name]
