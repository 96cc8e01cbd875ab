"""Fleet files, right and wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.core.errors import ConfigError
from loadgen.core.simulate.fleet import CURRENT
from loadgen.core.units import Duration
from loadgen.simulation import fleetfile

GOOD = """format: 1
name: test
nodes:
  big:
    count: 3
    memory: 64GiB
    cpus: 8
    uptime: 2h..3h
    settings:
      profile: "1.16"
    workloads: [base, pods]
workloads:
  base: {connections: {rate: 5, halfClosed: 0.1}, lookups: 2}
  pods: {pods: {burst: 5, every: 1h..2h}}
policies:
  often: {describe: every minute, settings: {conntrackGCInterval: 60s}}
"""


def test_every_built_in_fleet_is_valid_and_has_policies() -> None:
    for name in fleetfile.builtin_names():
        fleet = fleetfile.load(name)
        assert fleet.name == name
        assert len(fleetfile.policies(fleet)) > 2


def test_a_fleet_written_and_read_again_is_the_same() -> None:
    fleet = fleetfile.parse(GOOD, "f")
    again = fleetfile.from_raw(fleetfile.to_raw(fleet))
    assert fleetfile.to_raw(again) == fleetfile.to_raw(fleet)


def test_policies_lie_over_the_settings_of_every_type() -> None:
    found = fleetfile.policies(fleetfile.parse(GOOD, "f"))
    assert list(found) == [CURRENT, "often"]
    assert found[CURRENT].nodes["big"].settings.gc_interval is None
    assert found["often"].nodes["big"].settings.gc_interval == Duration.parse("60s")
    assert found["often"].nodes["big"].settings.profile == "1.16"


def test_policies_for_some_types_only_and_null_for_the_default() -> None:
    text = GOOD + "  some: {nodes: [big], settings: {profile: '1.18', apiRateLimit: null}}\n"
    assert fleetfile.policies(fleetfile.parse(text, "f"))["some"].nodes["big"].settings.profile == "1.18"
    assert list(fleetfile.policies(fleetfile.parse(text, "f"), ["some"])) == [CURRENT, "some"]
    with pytest.raises(ConfigError, match="--policy 'x': no such policy; there are current, often"):
        fleetfile.policies(fleetfile.parse(GOOD, "f"), ["x"])


def test_overrides() -> None:
    fleet = fleetfile.parse(GOOD, "f", ["nodes.big.settings.conntrackGCInterval=60s", "workloads.base.lookups=7"])
    assert fleet.nodes["big"].settings.gc_interval == Duration.parse("60s")
    assert fleet.workloads["base"].lookups == 7


WRONG = [
    ("count: 3", "count: 0", r"f:5: nodes\.big\.count: Expected 'int' >= 1"),
    ("memory: 64GiB", "memory: 64", r"f:6: nodes\.big\.memory: Expected 'str'"),
    ("memory: 64GiB", "memory: 64 gigs", r"f:6: nodes\.big\.memory: bad amount of memory '64 gigs'"),
    ("cpus: 8", "cpu: 8", r"f:7: nodes\.big\.cpu: unknown key \(did you mean 'cpus'\?\)"),
    ("uptime: 2h..3h", "uptime: 3h..2h", r"f:8: nodes\.big\.uptime: bad time '3h\.\.2h': its end lies before"),
    ('profile: "1.16"', "profile: 1.16", r"f:10: nodes\.big\.settings\.profile: Expected 'str'.*needs quotes"),
    ('profile: "1.16"', 'profile: "1.7"', r"f:10: nodes\.big\.settings\.profile: no profile '1\.7'"),
    ('profile: "1.16"', "conntrackGCInterval: 60", r"f:10: nodes\.big\.settings\.conntrackGCInterval: "),
    ('profile: "1.16"', "conntrackGCInterval: 5ms", r"f:10: .*conntrackGCInterval: 5ms is shorter than a second"),
    ('profile: "1.16"', "apiRateLimit: {nope: {}}", r"f:10: .*apiRateLimit: no call 'nope'"),
    ("[base, pods]", "[base, podz]", r"f:11: nodes\.big\.workloads\[1\]: 'podz': no such workload \(did you mean"),
    ("[base, pods]", "[base, base]", r"f:11: nodes\.big\.workloads: one is named twice"),
    ("rate: 5", "rate: 0", r"f:13: workloads\.base\.connections\.rate: Expected"),
    ("halfClosed: 0.1", "halfClosed: 2", r"f:13: workloads\.base\.connections\.halfClosed: Expected"),
    ("{pods: {burst: 5, every: 1h..2h}}", "{}", r"f:14: workloads\.pods: it does nothing"),
    ("every: 1h..2h", "every: 0s..1h", r"f:14: workloads\.pods\.pods\.every: it must be at least 1s"),
    ("{pods: {", "{duration: 1h, pods: {", r"f:14: workloads\.pods\.duration: it needs a start"),
    ("often: {", "current: {", r"f:16: policies\.current: 'current' is what the settings as written are called"),
    (
        "conntrackGCInterval: 60s",
        "conntrackGcInterval: 60s",
        r"f:16: policies\.often\..*GcInterval: unknown key",
    ),
    (
        "conntrackGCInterval: 60s",
        "conntrackGCInterval: 60",
        r"f:16: policies\.often\.settings\.conntrackGCI",
    ),
    ("format: 1", "format: 2", r"f:1: format: 2; this loadgen reads format 1"),
    ("nodes:", "nodes: [", r"f: not YAML"),
]


@pytest.mark.parametrize(("good", "bad", "message"), WRONG, ids=[bad[:40] for _, bad, _ in WRONG])
def test_what_is_wrong_is_said_with_line_and_key(good: str, bad: str, message: str) -> None:
    assert good in GOOD
    with pytest.raises(ConfigError, match=message):
        fleetfile.parse(GOOD.replace(good, bad, 1), "f")


def test_an_override_that_is_wrong_is_not_blamed_on_a_line_of_the_file() -> None:
    with pytest.raises(ConfigError, match=r"^f: nodes\.big\.cpus: Expected 'int' >= 1"):
        fleetfile.parse(GOOD, "f", ["nodes.big.cpus=0"])


def test_missing_file_names_the_built_in_fleets(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no fleet 'nope'.*trino-lands"):
        fleetfile.load("nope")
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not readable"):
        fleetfile.load(str(tmp_path / "x.yaml"))


def test_schema_in_the_docs_is_this_versions() -> None:
    path = Path(__file__).parents[2] / "docs" / "fleet.schema.json"
    found = json.loads(json.dumps(fleetfile.json_schema()))
    assert json.loads(path.read_text()) == found, "run: loadgen schema --fleet > docs/fleet.schema.json"
