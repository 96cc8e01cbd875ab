"""What a configuration may be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.core.errors import ConfigError
from loadgen.core.model import Cilium
from loadgen.core.units import NS_PER_S
from loadgen.lab.agent.config import listen_address, load, settings_text

GOOD = {"socket": "/s", "pin_dir": "/p", "pod_cidr": "10.244.0.0/24", "gateway": "10.244.0.1"}


def loaded(tmp_path: Path, **changes: object):
    path = tmp_path / "agent.json"
    path.write_text(json.dumps({**GOOD, **changes}))
    return load(path)


def test_durations_are_written_as_in_scenarios(tmp_path):
    config = loaded(tmp_path, cilium={"conntrackGCInterval": "1m", "gcIntervalNow": "12h"})
    assert config.cilium.gc_interval == 60 * NS_PER_S
    assert config.cilium.gc_interval_now == 43_200 * NS_PER_S
    assert config.attach


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gateway": "10.0.0.1"}, "gateway: 10.0.0.1 is not within"),
        ({"pod_cidr": "10.244.0.7/24"}, "has host bits set"),
        ({"cilium": {"profile": "0.9"}}, "no profile '0.9'"),
        ({"cilium": {"apiRateLimit": {"x": {}}}}, "no call 'x'"),
        ({"cilium": {"conntrackGCInterval": "60"}}, "it has no unit"),
        ({"sokcet": "/s"}, "unknown field `sokcet`"),
        ({"pod_cidr": "", "gateway": ""}, "agent.json"),
        ({"metrics_listen": "localhost"}, "agent.json: metrics_listen: 'localhost' is not HOST:PORT"),
        ({"metrics_listen": ":70000"}, "agent.json: metrics_listen: ':70000' is not"),
        ({"spans_by": "node"}, "Invalid enum value 'node'"),
    ],
)
def test_bad_configurations_name_file_and_reason(tmp_path, changes, why):
    with pytest.raises(ConfigError, match=why) as error:
        loaded(tmp_path, **changes)
    assert "profile" in str(error.value) or "apiRateLimit" in str(error.value) or "agent.json" in str(error.value)


def test_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "nowhere.json")


def test_chained_it_needs_no_addresses_of_its_own(tmp_path):
    assert loaded(tmp_path, chained=True, pod_cidr="", gateway="").gateway == ""


def test_where_to_listen():
    assert listen_address(":9962") == (None, 9962)
    assert listen_address("127.0.0.1:1") == ("127.0.0.1", 1)
    assert listen_address("[::1]:1") == ("::1", 1)


def test_equal_settings_are_the_same_text(tmp_path):
    minute = loaded(tmp_path, cilium={"conntrackGCInterval": "1m"}).cilium
    assert settings_text(minute) == settings_text(loaded(tmp_path, cilium={"conntrackGCInterval": "60s"}).cilium)
    assert settings_text(minute) != settings_text(Cilium())
    assert json.loads(settings_text(minute))["conntrackGCInterval"] == "1m"
