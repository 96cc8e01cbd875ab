from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from loadgen.core.errors import ConfigError
from loadgen.core.model import ApiLimit, Bpf, Cilium
from loadgen.core.units import Duration
from loadgen.kube.cni import ciliumvalues
from loadgen.kube.cni.ciliumvalues import Running, Version

SIZES = Bpf(ct_tcp_max=4_194_304, ct_any_max=262_144)
DRIFTED = Cilium(gc_interval_now=Duration.parse("12h"), bpf=SIZES)
FIXED = Cilium(gc_interval=Duration.parse("60s"), gc_max_interval=Duration.parse("1h"), bpf=SIZES)
LIMITED = Cilium(
    api_rate_limit={
        "endpoint-create": ApiLimit(rate_limit=0.5, rate_burst=4, parallel_requests=2, auto_adjust=False),
        "endpoint-delete": ApiLimit(max_wait_duration=Duration.parse("30s")),
        "endpoint-get": ApiLimit(),
    }
)
LIMITS = (
    "endpoint-create=rate-limit:0.5/s,rate-burst:4,parallel-requests:2,auto-adjust:false,"
    "endpoint-delete=max-wait-duration:30s"
)


@pytest.mark.parametrize(
    ("text", "version", "profile"),
    [
        ("1.16.15", (1, 16, 15), "1.16"),
        ("v1.18.3", (1, 18, 3), "1.18"),
        ("1.16", (1, 16, 0), "1.16"),
        ("1.14.19", (1, 14, 19), "1.16"),
        ("1.17.18", (1, 17, 18), "1.16"),
        ("1.20.0-pre.1", (1, 20, 0), "1.18"),
    ],
)
def test_versions_and_the_modelled_one_that_they_follow(text: str, version: tuple[int, ...], profile: str) -> None:
    found = Version.parse(text)
    assert (found, found.profile) == (version, profile)


def test_no_version() -> None:
    with pytest.raises(ConfigError, match="'latest' is no version of Cilium"):
        Version.parse("latest")


# --- what goes in -----------------------------------------------------------------------------------------------


def test_helm_values_say_everything_also_what_is_not_set() -> None:
    assert ciliumvalues.helm(DRIFTED, Version(1, 16, 19)) == {
        "conntrackGCInterval": "12h",
        "conntrackGCMaxInterval": "",
        "bpf": {"ctTcpMax": 4_194_304, "ctAnyMax": 262_144},
        "apiRateLimit": "",
    }
    assert ciliumvalues.helm(FIXED, Version(1, 20, 0))["conntrackGCMaxInterval"] == "1h"


def test_charts_without_types_get_sizes_as_texts_and_1_14_its_limits_as_a_key_of_the_config_map() -> None:
    old = ciliumvalues.helm(LIMITED, Version(1, 14, 19))
    assert old["bpf"] == {"ctTcpMax": "524288", "ctAnyMax": "262144"}
    assert (old["extraConfig"], "apiRateLimit" in old) == ({"api-rate-limit": LIMITS}, False)
    assert ciliumvalues.helm(FIXED, Version(1, 14, 19))["extraConfig"] == {"api-rate-limit": None}
    assert ciliumvalues.helm(LIMITED, Version(1, 15, 0))["apiRateLimit"] == LIMITS


def test_config_map_keys_are_texts_or_not_there() -> None:
    assert ciliumvalues.config_map(FIXED) == {
        "conntrack-gc-interval": "1m",
        "conntrack-gc-max-interval": "1h",
        "bpf-ct-global-tcp-max": "4194304",
        "bpf-ct-global-any-max": "262144",
        "api-rate-limit": None,
    }
    limited = ciliumvalues.config_map(LIMITED)
    assert (limited["conntrack-gc-interval"], limited["api-rate-limit"]) == (None, LIMITS)
    assert set(limited) == set(ciliumvalues.KEYS)


@pytest.mark.parametrize(
    ("settings", "interval"),
    [
        (Cilium(), None),
        (DRIFTED, "12h"),
        (FIXED, "1m"),
        (Cilium(gc_interval_now=Duration.parse("12h"), gc_interval=Duration.parse("60s")), "1m"),
        (Cilium(gc_interval_now=Duration.parse("12h"), gc_max_interval=Duration.parse("1h")), "1h"),
    ],
)
def test_a_drifted_interval_is_fixed_where_it_has_drifted_to(settings: Cilium, interval: str | None) -> None:
    found = ciliumvalues.fixed_interval(settings)
    assert (str(found) if found else None) == interval


@pytest.mark.parametrize(
    ("settings", "running", "says"),
    [
        (Cilium(build_permits=3), None, r"x\.cilium\.buildPermits: Cilium has no such setting"),
        (Cilium(api_rate_limit={"endpoint-nope": ApiLimit()}), None, r"x\.cilium\.apiRateLimit: no call"),
        (Cilium(), Version(1, 18, 3), r"x\.cilium\.profile: 1\.16, but Cilium 1\.18\.3 runs here.*profile=1\.18"),
        (Cilium(profile="1.18"), Version(1, 17, 18), r"1\.17\.18 runs here, which follows the rules of 1\.16"),
        (FIXED, Version(1, 14, 2), r"conntrackGCMaxInterval: Cilium has it since 1\.14\.3"),
    ],
)
def test_what_that_cilium_cannot_do(settings: Cilium, running: Version | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ciliumvalues.check(settings, "x.cilium", running)


@pytest.mark.parametrize("running", [None, Version(1, 14, 19), Version(1, 16, 19), Version(1, 17, 0)])
def test_what_every_cilium_of_that_profile_can_do(running: Version | None) -> None:
    checked = [ciliumvalues.check(settings, "x.cilium", running) for settings in (Cilium(), DRIFTED, FIXED, LIMITED)]
    assert checked == [None] * 4


# --- what an agent says -----------------------------------------------------------------------------------------

# As `cilium-dbg config --all` of 1.16.15 lists them.
SHOWN = """#### Read-only configurations ####
BPFMapEventBuffers             : map[]
CTMapEntriesGlobalAny          : 262144
CTMapEntriesGlobalTCP          : 4194304
ConntrackGCInterval            : 43200000000000
ConntrackGCMaxInterval         : 0
"""
FILES = {"conntrack-gc-interval": "12h", "bpf-ct-global-tcp-max": "4194304", "bpf-ct-global-any-max": "262144"}


def told(files: dict[str, str]) -> str:
    return "".join(f"{key}\t{value}\n" for key, value in files.items())


def test_an_agent_that_runs_as_asked() -> None:
    wanted = ciliumvalues.config_map(DRIFTED)
    assert ciliumvalues.differences(wanted, Running.parse(SHOWN, told(FILES))) == []
    # 1.19 shows less of itself, and its files are enough.
    assert ciliumvalues.differences(wanted, Running.parse("", told(FILES))) == []
    same = FILES | {"conntrack-gc-interval": "12h0m0s"}
    assert ciliumvalues.differences(wanted, Running.parse("", told(same))) == []


def test_an_agent_that_does_not() -> None:
    running = Running.parse(SHOWN, told(FILES))
    assert ciliumvalues.differences(ciliumvalues.config_map(FIXED), running) == [
        "ConntrackGCInterval 43200000000000 instead of 1m",
        "ConntrackGCMaxInterval 0 instead of 1h",
    ]
    limited = ciliumvalues.differences(ciliumvalues.config_map(LIMITED), running)
    assert limited == [
        "ConntrackGCInterval 43200000000000 instead of its default",
        "CTMapEntriesGlobalTCP 4194304 instead of 524288",
        f"api-rate-limit not set instead of {LIMITS}",
    ]
    assert len(ciliumvalues.differences(ciliumvalues.config_map(DRIFTED), Running.parse("garbage", ""))) == 3


def test_what_the_agent_says_counts_for_more_than_what_it_was_given() -> None:
    running = Running.parse(SHOWN, told(FILES | {"conntrack-gc-interval": "1m"}))
    assert ciliumvalues.differences(ciliumvalues.config_map(DRIFTED), running) == []


def test_limits_are_the_same_in_any_order() -> None:
    there = FILES | {
        "conntrack-gc-interval": "0s",
        "bpf-ct-global-tcp-max": "524288",
        "api-rate-limit": ",".join(reversed(LIMITS.split(",endpoint-delete"))).replace(
            "=max-wait-duration:30s,", "endpoint-delete=max-wait-duration:30s,"
        ),
    }
    assert ciliumvalues.differences(ciliumvalues.config_map(LIMITED), Running.parse("", told(there))) == []


def test_sizes_that_were_left_to_the_agent_are_not_compared() -> None:
    wanted = dict.fromkeys(ciliumvalues.KEYS)
    shown = SHOWN.replace("43200000000000", "0")
    assert ciliumvalues.differences(wanted, Running.parse(shown, "")) == []


def test_a_size_that_no_agent_reads_is_found_out() -> None:
    """As charts before 1.16 print it when it comes as a number."""
    running = Running.parse("", told(FILES | {"bpf-ct-global-tcp-max": "4.194304e+06"}))
    assert ciliumvalues.differences(ciliumvalues.config_map(DRIFTED), running) == [
        "bpf-ct-global-tcp-max '4.194304e+06' instead of 4194304"
    ]


def test_the_script_that_reads_the_files(tmp_path: Path) -> None:
    for key, value in FILES.items():
        (tmp_path / key).write_text(value)
    (tmp_path / "tunnel").write_text("vxlan")
    script = ciliumvalues.FILES_SCRIPT.replace(ciliumvalues.FILES, str(tmp_path))
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    assert Running.parse("", done.stdout).files == FILES
