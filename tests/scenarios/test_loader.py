import json
from pathlib import Path

import pytest

from loadgen.core.errors import ConfigError
from loadgen.core.units import Duration
from loadgen.scenarios import loader

MINIMAL = """
name: mine
hypothesis: it holds
settings: {resolver: {options: use-vc}, cilium: {bpf: {ctTcpMax: 4096}}}
variants:
  only: {settings: {cilium: {conntrackGCInterval: 60s}}}
loads:
  lookups: {driver: dns}
phases:
  - {name: one, duration: 10s, loads: [lookups]}
thresholds: [dns.lookup max < 2.5s]
"""


@pytest.mark.parametrize("name", loader.builtin_names())
def test_a_builtin_scenario_loads_and_survives_a_round_trip(name: str) -> None:
    scenario = loader.load(name)
    assert scenario.name == name
    assert sum(v.baseline for v in scenario.variants.values()) == 1
    assert loader.from_raw(json.loads(json.dumps(loader.to_raw(scenario))), name) == scenario


def test_the_three_scenarios_of_the_lab_are_there() -> None:
    assert set(loader.builtin_names()) >= {"chaos", "ct-gc-spiral", "dns-race"}


def test_a_file_works_as_a_builtin_does(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL)
    assert loader.load(str(path)) == loader.parse(MINIMAL, "mine")


def test_a_variant_gets_the_settings_under_its_own() -> None:
    settings = loader.parse(MINIMAL, "mine").variants["only"].settings
    assert settings.resolver.options == "use-vc"
    assert settings.cilium.bpf.ct_tcp_max == 4096
    assert settings.cilium.gc_interval == Duration.parse("60s")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("loads.lookups.pce=1", "loads.lookups.pce: unknown key (did you mean 'pace'?); allowed: names, pace"),
        ("loads.lookups.driver=dig", "loads.lookups.driver: unknown driver 'dig'; allowed: storm, churn, dns"),
        ("loads.lookups.pods=0", "loads.lookups.pods: Expected 'int' >= 1"),
        ("phases.one.duration=60", "duration: bad duration 60"),
        ("phases.one.duration='60'", "bad duration '60': it has no unit"),
        ("phases.one.duration=0s", "phases.one.duration: it must be longer than 0s"),
        ("phases.two.duration=60s", "phases.two: no such item; there are one"),
        ("phases.one.loads=[storm]", "phases.one.loads: 'storm': no such load; there are lookups"),
        ("phases.one.until=storm", "phases.one.until: 'storm': not a load of this phase; it has lookups"),
        ("phases.one.faults=[race]", "phases.one.faults: 'race': no such fault; there are none"),
        ("thresholds=[dns.lookup p99 < 3]", "threshold 'dns.lookup p99 < 3': bad duration"),
        ("reproduces=[sandbox.setup]", "reproduces: 'sandbox.setup': no threshold names this metric"),
        ("settings.cilium.bpf.ctTcpMax=99999999", "ctTcpMax: Expected 'int' <= 16777216"),
        ("variants.other={}", "exactly one of several is the baseline; now none"),
        ("settings.cilium.profile=1.18", "profile: Expected 'str', got 'float'; a version that looks like a number"),
        ("format=2", "format: 2; this loadgen reads format 1"),
        ("hypothesis.more=1", "hypothesis is a plain value"),
        ("nonsense", "write PATH=VALUE"),
        ("name=[", "the value is not YAML"),
    ],
)
def test_what_is_wrong_is_said_with_its_path(override: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loader.parse(MINIMAL, "mine", [override])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_mapping_key_in_an_error_is_the_real_one() -> None:
    with pytest.raises(ConfigError, match=r"faults\.race\.probability"):
        loader.load("dns-race", ["faults.race.probability=7"])


def test_an_override_reaches_into_lists_by_name_and_number() -> None:
    for path in ("phases.one.duration", "phases.0.duration"):
        assert loader.parse(MINIMAL, "mine", [f"{path}=3s"]).phases[0].duration == Duration.parse("3s")


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "", "\tname: x"])
def test_what_is_no_scenario_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="mine"):
        loader.parse(text, "mine")


def test_an_unknown_scenario_names_the_builtin_ones() -> None:
    with pytest.raises(ConfigError, match="chaos"):
        loader.load("chaoss")


def test_the_schema_in_docs_is_the_one_of_the_code() -> None:
    path = Path(__file__).parents[2] / "docs" / "scenario.schema.json"
    found = json.loads(json.dumps(loader.json_schema()))
    assert json.loads(path.read_text()) == found, "run: loadgen schema > docs/scenario.schema.json"
