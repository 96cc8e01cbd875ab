from typing import Any

import pytest

from loadgen.core.errors import ConfigError
from loadgen.core.model import Scenario
from loadgen.scenarios import keys


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"name": 5, "loads": "not a mapping", "phases": 3, "variants": []},
        {"loads": {"any name": {"driver": "dns", "pace": {"kind": "burst", "size": 3}}}},
        {"variants": {"x": {"settings": {"cilium": {"bpf": {"ctTcpMax": 5}}}}}},
        {"phases": [{"name": "a"}, {"until": None}]},
    ],
)
def test_known_keys_pass_whatever_their_values_are(raw: dict[str, Any]) -> None:
    assert keys.check(raw, Scenario, "f") is None


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"nmae": 1}, "f: nmae: unknown key (did you mean 'name'?); allowed: faults, format"),
        ({"phases": [{}, {"lods": 1}]}, "f: phases[1].lods: unknown key (did you mean 'loads'?)"),
        ({"loads": {"a": {"driver": "storm", "zzz": 1}}}, "f: loads.a.zzz: unknown key; allowed: close, pace"),
        ({"loads": {"a": {"rate": 1}}}, "f: loads.a: 'driver' is missing; one of storm, churn, dns"),
        ({"loads": {"a": {"driver": "dns", "pace": {"kind": "x"}}}}, "f: loads.a.pace.kind: unknown kind 'x'"),
        ({"settings": {"cilium": {"conntrackGcInterval": 1}}}, "did you mean 'conntrackGCInterval'?"),
        ({"settings": {"cilium": {"apiRateLimit": {"endpoint-create": {"rate": 1}}}}}, "endpoint-create.rate"),
    ],
)
def test_an_unknown_key_is_named_with_its_path_and_what_is_allowed(raw: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        keys.check(raw, Scenario, "f")
    assert says in str(caught.value)
