"""What this machine can do of what the lab needs. Each probe does the thing itself, in namespaces of its own."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from loadgen.core.conntrack import CT_KEY_DTYPE, CT_VALUE_DTYPE
from loadgen.core.errors import HarnessError, LoadgenError, NotSupported
from loadgen.core.procfs import parse_mem_available
from loadgen.kernel import bpf, libbpf, libc, mounts, netns, nfct, nft
from loadgen.kernel.links import Links

State = Literal["ok", "missing", "unknown"]

MEMORY_NEEDED = 1 << 30
"""A lab with tables of the default sizes and a dozen processes stays below this."""


class Feature(msgspec.Struct, frozen=True):
    """One thing the lab needs. `unknown`: the probe failed in a way that says nothing about the feature."""

    name: str
    state: State
    why: str
    remedy: str = ""


class Probe(NamedTuple):
    name: str
    remedy: str
    run: Callable[[Path], str]
    """Gets an empty directory on a bpffs, in network and mount namespaces of its own. Returns what it found; raises
    OSError, NotSupported or HarnessError when it cannot do the thing."""


# Errors that mean "this kernel cannot, or will not let us". Others (no memory, no descriptors left) say nothing.
_CONCLUSIVE = {
    errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL, errno.ENOENT,
    errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT,
}  # fmt: skip


def probe_all() -> tuple[Feature, ...]:
    """Try everything. Needs root for more than the first answer; leaves nothing behind; a fraction of a second."""
    if os.geteuid() != 0:
        untried = tuple(Feature(probe.name, "unknown", "not tried without root") for probe in PROBES)
        return (Feature("root", "missing", "not running as root", "run with sudo"), *untried, memory())
    with tempfile.TemporaryDirectory(prefix="loadgen-probe-") as directory:
        try:
            features = netns.fresh_thread(_probe_in_scratch, Path(directory))
        except OSError as error:
            why = f"no namespaces of our own: {error.strerror}"
            remedy = "run as full root; in a container with CAP_SYS_ADMIN and CAP_NET_ADMIN"
            features = (Feature("namespaces", "missing" if error.errno in _CONCLUSIVE else "unknown", why, remedy),)
    return (Feature("root", "ok", "running as root"), *features, memory())


def run(probe: Probe, directory: Path) -> Feature:
    """The probe's answer as a Feature; never raises for what the probe may raise."""
    try:
        return Feature(probe.name, "ok", probe.run(directory))
    except OSError as error:
        return Feature(probe.name, _state(error), str(error.strerror or error), probe.remedy)
    except LoadgenError as error:
        return Feature(probe.name, _state(error), str(error), probe.remedy)


def memory(path: Path = Path("/proc/meminfo")) -> Feature:
    try:
        available = parse_mem_available(path.read_text())
    except (OSError, ValueError) as error:
        return Feature("memory", "unknown", str(error))
    why = f"{available / 2**30:.1f} GiB available"
    if available < MEMORY_NEEDED:
        return Feature("memory", "missing", why, f"free some: the lab needs {MEMORY_NEEDED / 2**30:.0f} GiB")
    return Feature("memory", "ok", why)


def _state(error: OSError | LoadgenError) -> State:
    """What a failure says about the feature. HarnessErrors carry the OSError, or nft's words, that they came of."""
    if isinstance(error, NotSupported):
        return "missing"
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError):
        return "missing" if cause.errno in _CONCLUSIVE else "unknown"
    conclusive = (os.strerror(code) for code in _CONCLUSIVE)
    return "missing" if any(text in str(error) for text in conclusive) else "unknown"


def _probe_in_scratch(directory: Path) -> tuple[Feature, ...]:
    libc.unshare(libc.CLONE_NEWNET)
    mounts.scratch()
    netns.loopback_up()
    features = [Feature("namespaces", "ok", "network and mount namespaces can be made")]
    features += [run(probe, directory) for probe in PROBES]
    return tuple(features)


# --- the probes, in the order in which one builds on another ----------------------------------------------------


def _veth(_directory: Path) -> str:
    with Links() as links:
        links.veth("probe0", "probe1", Path("/proc/thread-self/ns/net"))
        links.up("probe1")
        links.delete("probe0")
    return "a pair was made, brought up and deleted"


def _bpffs(directory: Path) -> str:
    mounts.bpffs(directory)
    return "mounted"


def _create_map() -> int:
    key, value = CT_KEY_DTYPE.itemsize, CT_VALUE_DTYPE.itemsize
    return libbpf.call("bpf_map_create", bpf.BPF_MAP_TYPE_LRU_HASH, b"loadgen_probe", key, value, 1024, None)


def _maps(_directory: Path) -> str:
    os.close(_create_map())
    return "an LRU hash map was created"


def _batch(_directory: Path) -> str:
    """Put two entries in with one system call and read them with another."""
    keys = ctypes.create_string_buffer(bytes(14) + b"\1" * 14, 28)
    values = ctypes.create_string_buffer(112)
    count = ctypes.c_uint32(2)
    opts = libbpf.BatchOpts(sz=ctypes.sizeof(libbpf.BatchOpts))
    cursor = ctypes.create_string_buffer(16)
    fd = _create_map()
    try:
        libbpf.call("bpf_map_update_batch", fd, keys, values, ctypes.byref(count), ctypes.byref(opts))
        # Asking for one more than there is ends in ENOENT: the whole map has been read.
        count.value, many = 4, (ctypes.create_string_buffer(4 * 14), ctypes.create_string_buffer(4 * 56))
        try:
            libbpf.call("bpf_map_lookup_batch", fd, None, cursor, *many, ctypes.byref(count), ctypes.byref(opts))
        except FileNotFoundError:
            pass
        if count.value != 2:
            raise HarnessError(f"2 entries were put into a map and {count.value} came back")
    finally:
        os.close(fd)
    return "batched update and lookup work"


def _datapath(directory: Path) -> str:
    with bpf.CtDatapath.load(directory / "globals", 1024, 1024) as datapath:
        datapath.attach(socket.if_nametoindex("lo"))
    return "the conntrack programs load, and attach to an interface (tc clsact)"


def _nft(_directory: Path) -> str:
    return nft.version()


def _nft_rules(_directory: Path) -> str:
    """kube-proxy's DNAT with a random choice, and the rule that drops the racing second query."""
    table = {"family": "ip", "table": "loadgen_probe"}
    chain = {**table, "policy": "accept", "hook": "prerouting"}
    choice = {"numgen": {"mode": "random", "mod": 2}}
    dnat = {"dnat": {"addr": {"map": {"key": choice, "data": {"set": [[0, "10.0.0.2"], [1, "10.0.0.3"]]}}}}}
    dns = {"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": 53}}
    confirmed = {"match": {"op": "in", "left": {"ct": {"key": "status"}}, "right": "confirmed"}}
    nft.apply(
        None,
        [
            {"add": {"table": {"family": "ip", "name": "loadgen_probe"}}},
            {"add": {"chain": {**chain, "name": "nat", "type": "nat", "prio": -100}}},
            {"add": {"rule": {**table, "chain": "nat", "expr": [dns, dnat]}}},
            {"add": {"chain": {**chain, "name": "drop", "type": "filter", "prio": -150}}},
            {"add": {"rule": {**table, "chain": "drop", "expr": [dns, confirmed, {"drop": None}]}}},
        ],
    )
    nft.delete_table(None, "ip", "loadgen_probe")
    return "DNAT with numgen, and ct status confirmed"


def _nf_conntrack(_directory: Path) -> str:
    missing = nfct.read(None).missing
    return f"readable; not reported by this kernel: {', '.join(missing)}" if missing else "readable"


_KERNEL_BPF = "a kernel ≥ 5.12 with CONFIG_BPF_SYSCALL, and root or CAP_BPF"
PROBES = (
    Probe("veth", "load the driver: modprobe veth", _veth),
    Probe("bpffs", "a kernel with CONFIG_BPF_SYSCALL, and CAP_SYS_ADMIN", _bpffs),
    Probe("BPF maps", f"{_KERNEL_BPF}; apt install libbpf1", _maps),
    Probe("BPF batch operations", _KERNEL_BPF, _batch),
    Probe(
        "conntrack datapath",
        "build it: apt install clang libbpf-dev linux-libc-dev; python setup.py build_ext --inplace",
        _datapath,
    ),
    Probe("nft", "apt install nftables", _nft),
    Probe("nft nat", "load the modules: modprobe -a nft_chain_nat nft_nat nft_numgen nft_ct", _nft_rules),
    Probe("nf_conntrack counters", "load the module: modprobe nf_conntrack", _nf_conntrack),
)


def require_root() -> None:
    """NotSupported without root: the first thing that everything here needs."""
    if os.geteuid() != 0:
        raise NotSupported("root", "the lab makes namespaces and BPF maps, which needs root", "run with sudo")


def require() -> None:
    """NotSupported names the first feature that the lab cannot do without, why, and what would help."""
    require_root()
    for feature in probe_all():
        if feature.state == "missing":
            raise NotSupported(feature.name, feature.why, feature.remedy)


def available_memory() -> int:
    """Bytes that can be had without swapping (MemAvailable)."""
    return parse_mem_available(Path("/proc/meminfo").read_text())


def total_memory() -> int:
    """Bytes of RAM."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cpu_model() -> str:
    """The first CPU's model name, as /proc/cpuinfo has it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"
