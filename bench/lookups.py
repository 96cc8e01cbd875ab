"""Queries a second and CPU: our lookups in C beside dnsperf and dnspython, on the same server, in turns.

    python bench/lookups.py [--rounds 5] [--seconds 2]      root: everything happens in a network namespace of its own

Every client asks the same server (loadgen.native.Responder, a process of its own) for the same 1000 names, A and AAAA
in turn, with at most 100 queries under way. What is compared is answered queries per second of the client's own CPU
time (user and system), which other work on the machine disturbs less than the rate; the rate is shown as well. One
round measures every client once, so that they share what the machine does meanwhile; ratios are taken within a round.

    fresh     Pairs, glibc: socket, connect, one sendmmsg, recvmmsg, close for each lookup
    recycled  Pairs, glibc: the socket is disconnected and connected again, which takes a new port
    musl      Pairs, musl, recycled
    dnsperf   -c 1 -T 1 -q 100: one socket for all queries
    dnspython dns.query.udp: a socket for each query
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from loadgen.core import dnswire
from loadgen.core.units import NS_PER_S
from loadgen.native import Pairs, Responder

NAMES = [f"service-{i}.namespace.svc.cluster.local." for i in range(1000)]
UNDER_WAY = 100
CHUNK = 2000
SERVER_LIMIT_S = 3600


class Measured(msgspec.Struct, frozen=True):
    """One client, one round. Times in seconds."""

    answered: int
    took_s: float
    cpu_s: float
    lost: int

    @property
    def per_cpu_s(self) -> float:
        return self.answered / self.cpu_s

    @property
    def rate(self) -> float:
        return self.answered / self.took_s


# --- clients: each in a process of its own, which prints a Measured -----------------------------------------------


def by_pairs(port: int, seconds: float, resolver: str, *, recycles: bool) -> Measured:
    """Lookups are due sooner than they can be made, so that as many as may be are always under way."""
    wires = [dnswire.query(0, dnswire.name(name) or b"", t).wire for name in NAMES for t in (dnswire.A, dnswire.AAAA)]
    pairs = Pairs(
        queries=b"".join(map(dnswire.frame, wires)),
        per_lookup=2,
        server=bytes((127, 0, 0, 1)) + port.to_bytes(2, "big"),
        resolver=resolver,
        mode=0,
        remembers=False,
        recycles=recycles,
        round_ns=5 * NS_PER_S,
        attempts=2,
        limit_ns=30 * NS_PER_S,
        max_open=UNDER_WAY // 2,
        seed=1,
    )
    began, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - began < seconds:
        pairs.push(np.full(CHUNK, time.monotonic_ns(), np.int64))
        while pairs.queued:
            pairs.run(time.monotonic_ns() + NS_PER_S)
        pairs.drain()
    while pairs.open:
        pairs.run(time.monotonic_ns() + NS_PER_S)
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    return Measured(pairs.answered, took, cpu, pairs.sent - pairs.answered)


def by_dnspython(port: int, seconds: float) -> Measured:
    """The quickest way it has: messages made before, one query after the other."""
    import dns.message
    import dns.query

    messages = [dns.message.make_query(name, kind) for name in NAMES[:50] for kind in ("A", "AAAA")]
    began, cpu, n = time.monotonic(), time.process_time(), 0
    while time.monotonic() - began < seconds:
        dns.query.udp(messages[n % len(messages)], "127.0.0.1", timeout=5, port=port)
        n += 1
    return Measured(n, time.monotonic() - began, time.process_time() - cpu, 0)


def by_dnsperf(port: int, seconds: float) -> Measured:
    with tempfile.NamedTemporaryFile("w", suffix=".queries") as file:
        file.write("".join(f"{name} {kind}\n" for name in NAMES for kind in ("A", "AAAA")))
        file.flush()
        command = ["dnsperf", "-s", "127.0.0.1", "-p", str(port), "-d", file.name, "-c", "1", "-T", "1"]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            [*command, "-q", str(UNDER_WAY), "-l", f"{seconds:g}"], check=True, capture_output=True, text=True
        )
        took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    counts = {
        line.split(":")[0].strip(): line.split(":")[1].split() for line in done.stdout.splitlines() if ":" in line
    }
    took = float(counts["Run time (s)"][0]) if "Run time (s)" in counts else took
    return Measured(int(counts["Queries completed"][0]), took, cpu, int(counts["Queries lost"][0]))


CLIENTS: dict[str, Callable[[int, float], Measured]] = {
    "fresh": lambda port, s: by_pairs(port, s, "glibc", recycles=False),
    "recycled": lambda port, s: by_pairs(port, s, "glibc", recycles=True),
    "musl": lambda port, s: by_pairs(port, s, "musl", recycles=True),
    "dnsperf": by_dnsperf,
    "dnspython": by_dnspython,
}


def serve() -> None:
    server = Responder()
    print(server.port, flush=True)
    server.run(time.monotonic_ns() + SERVER_LIMIT_S * NS_PER_S)


# --- rounds -------------------------------------------------------------------------------------------------------


def measure(client: str, port: int, seconds: float) -> Measured:
    command = [sys.executable, __file__, "--client", client, "--port", str(port), "--seconds", str(seconds)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, timeout=60 + 10 * seconds)
    return msgspec.json.decode(done.stdout, type=Measured)


def table(rounds: list[dict[str, Measured]]) -> str:
    lines = [
        "| client | queries/s | queries per CPU second | ÷ dnsperf | ÷ dnspython | lost |",
        "|---|---|---|---|---|---|",
    ]
    for client in CLIENTS:
        mine = [one[client] for one in rounds]
        cells = [f"{statistics.median(m.rate for m in mine):,.0f}", _spread([m.per_cpu_s for m in mine], "{:,.0f}")]
        for other in ("dnsperf", "dnspython"):
            cells.append(_spread([one[client].per_cpu_s / one[other].per_cpu_s for one in rounds], "{:.2f}"))
        lines.append(f"| {client} | {' | '.join(cells)} | {sum(m.lost for m in mine)} |")
    return "\n".join(lines)


def _spread(values: list[float], form: str) -> str:
    return f"{form.format(statistics.median(values))} ({form.format(min(values))} … {form.format(max(values))})"


def machine() -> str:
    version = subprocess.run(["dnsperf", "-h"], capture_output=True, text=True).stdout + "\n"
    model = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    load = " ".join(f"{x:.1f}" for x in os.getloadavg())
    perf = next((line for line in version.splitlines() if "version" in line.lower()), "").strip()
    return f"{model.split(':')[1].strip()}, {os.cpu_count()} CPUs, Linux {platform.release()}, load {load}; {perf}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each client in each round")
    parser.add_argument("--json", type=Path, help="write what was measured here as well")
    parser.add_argument("--client", choices=CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
    elif given.client:
        sys.stdout.buffer.write(msgspec.json.encode(CLIENTS[given.client](given.port, given.seconds)))
    elif "LOADGEN_BENCH" not in os.environ:
        if os.geteuid() or not shutil.which("dnsperf"):
            raise SystemExit(
                "bench/lookups.py: needs root, for a namespace without conntrack, and dnsperf (Debian: dnsperf)"
            )
        inside = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, *sys.argv]
        os.execvpe("unshare", inside, {**os.environ, "LOADGEN_BENCH": "1"})
    else:
        run(given.rounds, given.seconds, given.json)


def run(rounds: int, seconds: float, to: Path | None) -> None:
    with subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            done = []
            for number in range(rounds):
                done.append({client: measure(client, port, seconds) for client in CLIENTS})
                print(f"round {number + 1} of {rounds}", file=sys.stderr)
        finally:
            server.terminate()
    print(f"{time.strftime('%Y-%m-%d', time.gmtime())}: {machine()}\n\n{table(done)}")
    if to is not None:
        to.write_text(json.dumps([{k: msgspec.to_builtins(v) for k, v in one.items()} for one in done], indent=1))


if __name__ == "__main__":
    main()
