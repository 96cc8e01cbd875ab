from __future__ import annotations

import msgspec
import pytest

from loadgen.core.metrics import METRICS
from loadgen.core.samples import Mark
from loadgen.report import tables, view
from loadgen.report.tables import NONE, Table
from tests import factories

FACTORIAL = ("before", "gc-only", "dns-only", "after")
RESULTS = factories.spiral(FACTORIAL)
VARIANTS = view.variants(RESULTS)


def texts(table: Table | None) -> dict[str, list[str]]:
    assert table is not None
    assert all(len(row) == len(table.columns) for row in table.rows)
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def test_the_matrix_shows_which_fix_moved_which_number() -> None:
    found = tables.matrix(VARIANTS)
    assert found.columns == [
        "threshold",
        "before (baseline)",
        "gc-only (partial fix)",
        "dns-only (partial fix)",
        "after",
    ]
    assert texts(found)["sandbox.setup failed == 0"] == ["31", "0", "31", "0"]
    assert texts(found)["dns.lookup max < 2.5s"] == ["5.002s", "5.002s", "5ms", "5ms"]
    assert [cell.small for cell in found.rows[2][1:]] == ["FAIL", "FAIL", "PASS", "PASS"]


def test_a_status_that_nobody_asked_for_is_muted() -> None:
    before, _, _, after = (tables.findings(v) for v in VARIANTS)
    assert [row[6].kind for row in before.rows] == ["muted", "muted", "muted", "pass"]
    assert [row[6].kind for row in after.rows] == ["pass"] * 4
    assert [cell.text for cell in before.rows[0][2:6]] == [">= 1m30s", "< 30s", "50", "31"]


def test_effects_stand_beside_the_baseline() -> None:
    found = tables.effects(RESULTS, VARIANTS)
    assert found is not None
    assert found.columns == ["metric", "before", "gc-only", "dns-only", "after"]
    assert texts(found)["sandbox.setup p99"] == [">= 1m30s", "6.375s", ">= 1m30s", "6.375s"]
    by_name = {row[0].text: row for row in found.rows}
    moved, still = by_name["sandbox.setup p99"][2], by_name["sandbox.setup p99"][3]
    assert moved.small.startswith(">= 14.1x faster [14.1 to ")
    assert (still.kind, still.small.startswith("no clear change")) == ("muted num", True)
    assert tables.effects(RESULTS._replace(effects=[]), VARIANTS) is None


def test_percentiles_that_so_few_samples_cannot_give_are_dashes_with_the_reason() -> None:
    found = tables.percentiles(VARIANTS[:1], ["sandbox.setup", "dns.lookup", "sandbox.delete"])
    rows = texts(found)
    assert rows["sandbox.setup, before"] == ["50", "19", "0", "31", *[">= 1m30s"] * 4, NONE, NONE, ">= 1m30s"]
    assert rows["dns.lookup, before"][-3:] == ["5.002s", NONE, "5.002s"]
    assert found is not None
    assert found.rows[0][-2].title == "needs 5,000 samples"
    assert tables.percentiles(VARIANTS, ["sandbox.delete"]) is None


def test_accounts_have_load_retries_lost_queries_and_reasons() -> None:
    rows = texts(tables.accounts(VARIANTS[:1], ["sandbox.setup", "dns.lookup"]))
    assert rows["sandbox.setup, before"] == ["at once", "100.00%", "0s", "31", "0", "31 × agent timeout 90s"]
    assert rows["dns.lookup, before"] == ["8.978/s", "100.00%", "0s", "4", "4", NONE]


def test_the_table_and_its_walks() -> None:
    rows = texts(tables.ct_table(VARIANTS))
    assert rows["before"][:3] == ["2,000,000", "2,200,000", "2,200,000"]
    assert rows["before"][3:] == ["1,980,000", "1,980,000", "0", "49", "19", "4.5s", "2.2 µs"]
    assert rows["after"][2:6] == ["60,000", "1,960,000", "3,000", "2"]


def test_counters_are_what_they_grew_by() -> None:
    rows = texts(tables.counters(VARIANTS, tables.LOOKUP_COUNTERS))
    assert rows[METRICS["race.drops"].meaning] == ["4"] * 4
    assert rows["clashes the kernel resolved by itself"] == ["15"] * 4
    assert len(rows) == 2
    assert tables.counters(VARIANTS, ["nfct.drop"]) is None


def test_every_counter_is_a_metric_there_is() -> None:
    assert set(tables.LOOKUP_COUNTERS + tables.CT_COUNTERS) <= set(METRICS)


def test_faults_are_told_in_the_order_of_time_and_in_their_own_words() -> None:
    plan = factories.scenario()
    marks = (Mark(factories.ns(31), "heal", "race"), Mark(factories.ns(1.5), "fault", "race", "1 in 200 is dropped"))
    run = factories.run(factories.info(plan, "after"), {}, run_marks=marks)
    found = tables.faults(factories.results(plan, [run]))
    assert found is not None
    assert [[cell.text for cell in row[1:]] for row in found.rows] == [
        ["1.5 s", "race", "1 in 200 is dropped"],
        ["31.0 s", "race", "heal"],
    ]
    assert tables.faults(RESULTS) is None


def test_the_slowest_sandboxes_have_their_causes() -> None:
    found = tables.slowest(VARIANTS[:1])
    assert found is not None
    first = found.rows[0]
    assert [cell.text for cell in first[2:5]] == [">= 1m30s", "2", "not up"]
    assert "waiting for a build permit" in first[5].text


def test_gauges_are_those_of_the_measured_phases_by_run() -> None:
    rows = texts(tables.gauges(VARIANTS))
    assert rows["ct.tcp.entries, 01-before"] == ["2", "2,050,000", "2,125,000", "2,200,000", "2,200,000"]


def test_runs_stand_in_the_order_in_which_they_were_made() -> None:
    plan = factories.scenario()
    runs = [factories.spiral_run(plan, "after", ending=""), factories.spiral_run(plan, "before")]
    rows = texts(tables.runs(factories.results(plan, runs)))
    assert list(rows) == ["01-after", "02-before"]
    assert rows["01-after"][-2:] == ["killed", "the run was cut short (killed)"]
    assert rows["02-before"][-2:] == ["complete", "none"]


def test_an_environment_that_differs_shows_both() -> None:
    plan = factories.scenario()
    before, after = (factories.spiral_run(plan, name) for name in ("before", "after"))
    other = after._replace(info=msgspec.structs.replace(after.info, environment={"kernel": "5.10"}))
    found = tables.environment(factories.results(plan, [before, other]))
    assert texts(found)["kernel"] == ["5.10 / 6.1.0-21-amd64"]
    assert texts(found)["cpus"] == ["2 / unknown"]
    assert texts(found)["command"] == ["loadgen chaos --seed 7"]
    assert next(row[1].kind for row in found.rows if row[0].text == "kernel") == "text inconclusive"


@pytest.mark.parametrize("make", [tables.ct_table, tables.slowest, tables.gauges])
def test_without_data_there_is_no_table(make: object) -> None:
    plan = factories.scenario()
    variants = view.variants(factories.results(plan, [factories.run(factories.info(plan, "after"), {})]))
    assert make(variants) is None  # type: ignore[operator]
