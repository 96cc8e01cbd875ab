"""Writes the evidence of a made-up night on which pods could not start: the worked example of docs/diagnose.md.

    python -m bench.night DIR [--entries N]

The story: a node up for a day, its GC interval drifted to 12 h, a table of short connections' leftovers, a burst of
57 pods. Every file is generated here in the form in which the tools print it; nothing is from a real node.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Iterator
from pathlib import Path

UPTIME_S = 93_600
PEERS = 500
SECOND = 1_000_000  # of a pcap's clock


def ct_lines(
    entries: int, *, expired: float = 0.97, half_closed: float = 0.02, now: int = UPTIME_S
) -> Iterator[bytes]:
    """`cilium-dbg bpf ct list global` of 1.16: expired, half-closed and established entries, in shares of 1,000."""
    expired_of, half_of = round(expired * 1000), round((expired + half_closed) * 1000)
    for i in range(entries):
        part = i % 1000
        if part < expired_of:
            expires, flags = now - 1 - i * 7 % 36_000, b"0x0013 [ RxClosing TxClosing SeenNonSyn ]"
        elif part < half_of:
            expires, flags = now + 1 + i * 7 % 7_900, b"0x0012 [ TxClosing SeenNonSyn ]"
        else:
            expires, flags = now + 7_995, b"0x0010 [ SeenNonSyn ]"
        peer = i % PEERS
        yield (
            b"TCP OUT 10.0.%d.%d:%d -> 10.1.%d.%d:50010 expires=%d Packets=0 Bytes=0 RxFlagsSeen=0x03 "
            b"LastRxReport=%d TxFlagsSeen=0x03 LastTxReport=%d Flags=%s RevNAT=0 SourceSecurityID=17433 IfIndex=0 "
            b"BackendID=0 \n"
        ) % (
            i % 3,
            i % 40 + 2,
            32_768 + i % 28_232,
            peer // 250,
            peer % 250 + 1,
            expires,
            min(expires, now - 5),
            min(expires, now - 3),
            flags,
        )


def goroutines(waiting: int = 56, minutes: int = 3) -> str:
    """`gops stack` of a 1.16 agent: one scrub walks, the others wait, the creates wait for them."""
    go, ctmap = "/go/src/github.com/cilium/cilium/pkg", "github.com/cilium/cilium/pkg/maps/ctmap"
    endpoint = "github.com/cilium/cilium/pkg/endpoint"
    scrub = [
        f"{ctmap}.GC(0xc000a8)\n\t{go}/maps/ctmap/ctmap.go:655 +0x92",
        f"{endpoint}.(*Endpoint).garbageCollectConntrack(0xc000123, 0xc000456)\n\t{go}/endpoint/bpf.go:1290 +0x1f4",
        f"{endpoint}.(*Endpoint).scrubIPsInConntrackTableLocked(0xc000123)\n\t{go}/endpoint/bpf.go:1312 +0x125",
        f"created by {endpoint}.(*Endpoint).runPreCompilationSteps in goroutine 7\n\t{go}/endpoint/bpf.go:740 +0x4f",
    ]
    walk = [
        f"github.com/cilium/cilium/pkg/bpf.(*Map).DumpReliablyWithCallback(0xc0)\n\t{go}/bpf/map_linux.go:960 +0x3",
        f"{ctmap}.doGC4(0xc000a8, 0xc000777)\n\t{go}/maps/ctmap/ctmap.go:525 +0x2e5",
    ]
    wait = [
        "sync.runtime_SemacquireMutex(0xc000d1, 0x0, 0x1)\n\t/usr/local/go/src/runtime/sema.go:77 +0x25",
        "sync.(*Mutex).lockSlow(0xc000d1)\n\t/usr/local/go/src/sync/mutex.go:171 +0x15d",
        "sync.(*Mutex).Lock(...)\n\t/usr/local/go/src/sync/mutex.go:90",
        f"{ctmap}.doGC4(0xc000a8, 0xc000777)\n\t{go}/maps/ctmap/ctmap.go:517 +0x85",
    ]
    create = [
        f"{endpoint}.(*Endpoint).WaitForFirstRegeneration(0xc000123)\n\t{go}/endpoint/endpoint.go:2210 +0x5",
        "github.com/cilium/cilium/daemon/cmd.(*putEndpointIDHandler).Handle(0xc0)\n\t/go/cmd/endpoint.go:6 +0x1",
    ]
    out = ["goroutine 1 [select, 1560 minutes]:\nmain.main()\n\t/go/src/main.go:10 +0x1d"]
    out.append("goroutine 90 [syscall]:\n" + "\n".join(walk + scrub))
    for i in range(waiting):
        out.append(f"goroutine {100 + i} [sync.Mutex.Lock, {minutes} minutes]:\n" + "\n".join(wait + scrub))
    for i in range(waiting + 1):
        out.append(f"goroutine {400 + i} [select, {minutes} minutes]:\n" + "\n".join(create))
    return "\n\n".join(out) + "\n"


def status(tcp: int = 16_777_216, other: int = 14_232_516, ratio: float = 0.005) -> str:
    return (
        "KVStore:                Disabled\nKubernetes:             Ok         1.30 (v1.30.2) [linux/amd64]\n"
        "Cilium:                 Ok   1.16.5 (v1.16.5-00000000)\nNodeMonitor:            Listening for events\n"
        f"BPF Maps:   dynamic sizing: on (ratio: {ratio:.6f})\n  Name                          Size\n"
        f"  TCP connection tracking       {tcp}\n  Non-TCP connection tracking   {other}\n"
        "  NAT                           16777216\nEncryption:             Disabled\n"
    )


def metrics(runs: int, refused: int = 0, pressure: float = 0.42) -> str:
    labels = 'family="ipv4",protocol="TCP"'
    return (
        "# HELP cilium_bpf_map_pressure Fill percentage of map, tagged by map name\n"
        "# TYPE cilium_bpf_map_pressure gauge\n"
        f'cilium_bpf_map_pressure{{map_name="ct4_global"}} {pressure}\n'
        "# TYPE cilium_datapath_conntrack_gc_runs_total counter\n"
        f'cilium_datapath_conntrack_gc_runs_total{{{labels},status="completed"}} {runs}\n'
        f'cilium_datapath_conntrack_gc_entries{{{labels},status="alive"}} 7.01e+06\n'
        f'cilium_datapath_conntrack_gc_entries{{{labels},status="deleted"}} 214\n'
        f'cilium_api_limiter_processed_requests_total{{api_call="endpoint-create",outcome="fail-limit-wait",'
        f'return_code="429"}} {refused}\n'
        "process_start_time_seconds 1.70920e+09\n"
    )


def agent_log() -> str:
    """Thirteen recalculations to 12 h, as the agent's rule has them, then creates that time out."""
    lines, interval = [], 300.0
    while interval < 43_200:
        interval = min(interval * 1.5, 43_200)
        whole = round(interval)
        text = f"{whole // 3600}h{whole % 3600 // 60}m{whole % 60}s"
        lines.append(
            'time="2024-03-01T02:00:00Z" level=info msg="Conntrack garbage collector interval recalculated" '
            f"deleteRatio=0.0004 newInterval={text} subsys=map-ct"
        )
    for number in range(9):
        lines.append(
            f'time="2024-03-02T03:1{number}:30Z" level=warning msg="Creation of endpoint failed" endpointID={number} '
            'error="timeout while waiting for initial endpoint generation to complete: context canceled" '
            "subsys=daemon"
        )
    lines.append(
        'time="2024-03-02T03:20:00Z" level=info msg="Completed endpoint regeneration" subsys=endpoint '
        "waitingForCTClean=1m12.2s waitingForLock=9.1us"
    )
    return "\n".join(lines) + "\n"


def kubelet_log() -> str:
    return "".join(
        f"E0302 03:1{i}:31.000000    1234 log.go:32] RunPodSandbox from runtime service failed: rpc error: code = "
        "Unknown desc = failed to setup network for sandbox: plugin type=cilium-cni failed (add): unable to create "
        "endpoint: Cilium API client timeout exceeded\n"
        for i in range(9)
    )


def conntrack_stat(insert_failed: int, drop: int, clash_resolve: int = 11) -> str:
    """`conntrack -S` of two CPUs."""
    return "".join(
        f"cpu={cpu}   \tfound={cpu} invalid=4 insert=0 insert_failed={insert_failed * (1 - cpu)} "
        f"drop={drop * (1 - cpu)} early_drop=0 error=0 search_restart=9 clash_resolve={clash_resolve} "
        "chaintoolong=0 \n"
        for cpu in range(2)
    )


def datagram(at_us: int, source: tuple[bytes, int], destination: tuple[bytes, int], payload: bytes) -> bytes:
    """A pcap record: Ethernet, IPv4, UDP."""
    udp = struct.pack(">HHHH", source[1], destination[1], 8 + len(payload), 0) + payload
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, source[0], destination[0]) + udp
    frame = b"\2" * 12 + b"\x08\x00" + ip
    return struct.pack("<IIII", at_us // SECOND, at_us % SECOND, len(frame), len(frame)) + frame


PCAP_HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, 1)


def lookups(pairs: int, lost: int, retry_us: int, both: bool) -> bytes:
    """A pcap of `pairs` A/AAAA lookups; the first `lost` have their AAAA unanswered and retried after `retry_us`.

    both: A and AAAA are asked again, as glibc does; else what is missing, as musl does.
    """
    client, server = b"\x0a\x00\x00\x07", (b"\x0a\x60\x00\x0a", 53)
    out: list[tuple[int, bytes]] = []

    def exchange(at: int, port: int, ident: int, qtype: int, answered: bool) -> None:
        question = b"\x02db\x03svc\x00" + struct.pack(">HH", qtype, 1)
        ask = struct.pack(">HHHHHH", ident, 0x0100, 1, 0, 0, 0) + question
        out.append((at, datagram(at, (client, port), server, ask)))
        if answered:
            reply = struct.pack(">HHHHHH", ident, 0x8180, 1, 0, 0, 0) + question
            out.append((at + 800, datagram(at + 800, server, (client, port), reply)))

    for i in range(pairs):
        at, port = 1_700_000_000 * SECOND + i * 10_000, 33_000 + i
        exchange(at, port, 2 * i, 1, answered=True)
        exchange(at + 20, port, 2 * i + 1, 28, answered=i >= lost)
        if i < lost and both:
            exchange(at + retry_us, port, 2 * i, 1, answered=True)
        if i < lost:
            exchange(at + retry_us + 1000, port, 2 * i + 1, 28, answered=True)
    return PCAP_HEADER + b"".join(record for _, record in sorted(out))


def write(directory: Path, entries: int) -> None:
    """All the night's files into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "ct-list.txt").open("wb") as file:
        file.writelines(ct_lines(entries))
    texts = {
        "gops-stack.txt": goroutines(),
        "status.txt": status(),
        "metrics-1.txt": metrics(400),
        "metrics-2.txt": metrics(590),
        "agent.log": agent_log(),
        "kubelet.log": kubelet_log(),
    }
    for name, text in texts.items():
        (directory / name).write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--entries", type=int, default=7_000_000)
    options = parser.parse_args()
    write(options.directory, options.entries)


if __name__ == "__main__":
    main()
