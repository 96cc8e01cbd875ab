"""GlibcLookupUser in a real Locust, against a name server that counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.kube import exchange
from tests.realdns import dns_server

LOCUST = Path(sys.executable).with_name("locust")
LOCUSTFILE = Path(exchange.__file__).with_name(exchange.LOOKUPFILE)
NAMES = ("one.example.", "no-such.example.")
OWN = f"""
from loadgen.kube.lookupfile import GlibcLookupUser

class Own(GlibcLookupUser):
    names = {NAMES!r}
    rate = 40
    fast = True
"""

pytestmark = pytest.mark.skipif(not LOCUST.exists(), reason="needs Locust: pip install -e '.[kube-image]'")


def locust(folder: Path, file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(LOCUST), "-f", str(file), *["--headless", "-u", "2", "-r", "2", "-t", "4s", "--json"]]
    return subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True, timeout=120)


def totals(said: str) -> tuple[int, int]:
    """Lookups and failures, as Locust counted them."""
    entries = json.loads(said)
    return sum(e["num_requests"] for e in entries), sum(e["num_failures"] for e in entries)


@pytest.mark.parametrize("own", [False, True])
def test_what_locust_counts_is_what_the_server_saw(tmp_path: Path, own: bool) -> None:
    file = tmp_path / "own.py" if own else LOCUSTFILE
    if own:
        file.write_text(OWN)
    options = () if own else ("--names", ",".join(NAMES), "--rate", "40")
    with dns_server(names=NAMES[:1]) as server:
        done = locust(tmp_path, file, "--host", f"127.0.0.1:{server.port}", *options)
        asked = server.stats().queries
    count, failures = totals(done.stdout)
    assert count > 20, done.stderr
    assert asked == {"A": count, "AAAA": count}
    assert abs(failures - count / 2) <= 2
    assert done.returncode == 1  # Locust's own: there were failures


def test_a_wrong_setting_is_one_line_and_exit_code_4(tmp_path: Path) -> None:
    done = locust(tmp_path, LOCUSTFILE, "--host", "127.0.0.1:1", "--names", "a..b")
    assert done.returncode == 4
    assert "'a..b' has an empty label" in done.stderr
    assert "Traceback" not in done.stderr
