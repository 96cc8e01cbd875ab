"""How fast `loadgen diagnose` reads a conntrack list, and in how much memory.

    python -m bench.ctlist [--entries 16000000] [--json]

A list is written to a temporary file in blocks of one million entries and read by a process of its own, whose CPU
time, wall time and greatest memory are shown. Lines a second are given of CPU time: the machine may be busy.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.night import UPTIME_S, ct_lines

READ = """
import atexit, sys
from pathlib import Path
from loadgen.cli import main
def peak():  # of this program alone: ru_maxrss would begin with its parent's
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print("greatest memory", int(line.split()[1]) // 1024, "MiB", flush=True)
atexit.register(peak)
main()
"""


def as_json(line_number: int) -> bytes:
    """One entry as `-o json` of 1.16 prints it, compact."""
    return (
        b'{"Key":{"DestAddr":[10,0,%d,%d],"SourceAddr":[10,1,0,%d],"DestPort":23235,"SourcePort":%d,"NextHeader":6,'
        b'"Flags":0},"Value":{"Reserved0":0,"BackendID":0,"Packets":0,"Bytes":0,"Lifetime":%d,"Flags":19,"RevNAT":0,'
        b'"IfIndex":0,"TxFlagsSeen":3,"RxFlagsSeen":3,"SourceSecurityID":17433,"LastTxReport":%d,"LastRxReport":%d}}'
    ) % (
        line_number % 3,
        line_number % 40,
        line_number % 250,
        line_number % 65536,
        60_000 + line_number % 30_000,
        1,
        2,
    )


def write(path: Path, entries: int, *, json: bool) -> int:
    """The bytes written. One block is repeated: the reader keeps no entry, so it cannot tell."""
    count = min(entries, 1_000_000)
    if json:
        block = b",\n".join(as_json(i) for i in range(count))
        with path.open("wb") as file:
            file.write(b"[" + block)
            for _ in range(entries // count - 1):
                file.write(b",\n" + block)
            file.write(b"]\n")
    else:
        block = b"".join(ct_lines(count))
        with path.open("wb") as file:
            for _ in range(entries // count):
                file.write(block)
    return path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=16_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="loadgen-bench-") as directory:
        path = Path(directory) / "ct-list"
        size = write(path, options.entries, json=options.json)
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        command = [sys.executable, "-c", READ, "diagnose", str(path), "--uptime", str(UPTIME_S)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(*(line for line in done.stdout.splitlines() if "entries;" in line or "greatest" in line), sep="\n")
    print(f"{options.entries:,} entries, {size / 1e9:.2f} GB: {wall:.1f} s wall, {cpu:.1f} s CPU, start-up included")
    print(f"{options.entries / cpu / 1e6:.2f} M entries a second of CPU, {size / cpu / 1e6:.0f} MB a second")


if __name__ == "__main__":
    main()
