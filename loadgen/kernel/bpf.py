"""BPF maps and the conntrack datapath: loading datapath/ct.bpf.o, pinning its tables, attaching it to veths."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import msgspec

from loadgen.core.conntrack import CT_KEY_DTYPE, CT_VALUE_DTYPE, TIMEOUTS, CtTimeouts
from loadgen.core.errors import HarnessError, NotSupported
from loadgen.kernel import libbpf

BPF_MAP_TYPE_LRU_HASH = 9

TCP_MAP = "cilium_ct4_global"
ANY_MAP = "cilium_ct_any4_global"

OBJECT = Path(__file__).parent / "datapath" / "ct.bpf.o"

_HANDLE = 0x10AD
"""Our filters' handle: what tells them from those that others have put on the same interface."""
_PRIORITIES = range(1, 9)
"""Tried in turn: one priority takes one kind of filter, and the first may be another's of another kind."""

_STATS_MAP = "loadgen_ct_stats"
_CONFIG_MAP = ".rodata.config"
_REPORT_INTERVAL_S = 5  # Cilium's CT_REPORT_INTERVAL
_LOG_CHARS = 6000


class MapInfo(msgspec.Struct, frozen=True):
    """What the kernel says of a map (struct bpf_map_info)."""

    type: int
    id: int
    key_size: int
    value_size: int
    max_entries: int
    map_flags: int
    name: str
    """Cut by the kernel after 15 characters."""


class CtStats(msgspec.Struct, frozen=True):
    """Entries that the programs have created, and that the kernel refused (a full free list), since load."""

    created: int
    create_failed: int


class _Config(ctypes.Structure):
    """struct ct_config in datapath/ct.h."""

    _fields_ = tuple(
        (name, ctypes.c_uint32) for name in ("tcp_s", "syn_s", "close_s", "any_s", "report_s", "src_sec_id")
    )


class _Stats(ctypes.Structure):
    """struct ct_stats in datapath/ct.h."""

    _fields_ = (("created", ctypes.c_uint64), ("create_failed", ctypes.c_uint64))


def obj_get(path: Path) -> int:
    """Open the map pinned at `path`; the caller closes the descriptor. OSError when there is none."""
    return libbpf.call("bpf_obj_get", os.fsencode(path), about=f"pinned map {path}")


def map_info(fd: int) -> MapInfo:
    info = libbpf.MapInfoStruct()
    size = ctypes.c_uint32(ctypes.sizeof(info))
    libbpf.call("bpf_obj_get_info_by_fd", fd, ctypes.byref(info), ctypes.byref(size))
    values = {field: getattr(info, field) for field in MapInfo.__struct_fields__}
    return MapInfo(**{**values, "name": info.name.decode()})


class CtDatapath:
    """Cilium's two IPv4 CT tables and the programs that fill them. Made by `load`.

    The tables live as long as they are pinned, the programs as long as an interface has them; closing this object
    gives back its own descriptors only.
    """

    def __init__(self, handle: int, programs: tuple[int, int], tables: tuple[int, int], stats_fd: int) -> None:
        self._handle: int | None = handle
        self._from_pod, self._to_pod = programs
        self.tcp_fd, self.any_fd = tables
        self._stats_fd = stats_fd

    @classmethod
    def load(
        cls,
        pin_dir: Path,
        tcp_max: int,
        any_max: int,
        *,
        identity: int = 0,
        timeouts: CtTimeouts = TIMEOUTS,
        path: Path = OBJECT,
    ) -> CtDatapath:
        """Load the programs, with tables of these capacities pinned in `pin_dir` (on a bpffs; made if missing).

        A pinned table of the same properties is taken over with all its entries; one of other properties is
        unpinned and begins anew, as Cilium does ("Unpinning map with incompatible properties", pkg/bpf).
        `identity` is every new entry's SourceSecurityID.

        NotSupported when libbpf or the object is missing; HarnessError, with libbpf's words and the verifier's
        log, when the kernel refuses.
        """
        if not path.exists():
            raise NotSupported("BPF object", f"{path} is not there", "build it: python setup.py build_ext --inplace")
        libbpf.library()
        with libbpf.messages() as said, ExitStack() as undo:
            try:
                pin_dir.mkdir(parents=True, exist_ok=True)
                handle = libbpf.find("bpf_object__open_file", os.fsencode(path), None, about=f"open {path}")
                undo.callback(libbpf.library().bpf_object__close, handle)
                _configure(handle, identity, timeouts)
                unpinned = [
                    _prepare(handle, TCP_MAP, tcp_max, pin_dir / TCP_MAP),
                    _prepare(handle, ANY_MAP, any_max, pin_dir / ANY_MAP),
                ]
                libbpf.call("bpf_object__load", handle, about=f"load {path}")
                for pin in filter(None, unpinned):
                    libbpf.call("bpf_map__pin", _map(handle, pin.name), os.fsencode(pin), about=f"pin {pin}")
                datapath = cls(
                    handle,
                    (_program(handle, "from_pod"), _program(handle, "to_pod")),
                    (_map_fd(handle, TCP_MAP), _map_fd(handle, ANY_MAP)),
                    _map_fd(handle, _STATS_MAP),
                )
            except OSError as error:
                raise _failure(error, said) from error
            undo.pop_all()
            return datapath

    def __enter__(self) -> CtDatapath:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def attach(self, ifindex: int) -> None:
        """Attach to the host side of a pod's veth, in the network namespace of the calling thread.

        clsact ingress is what the pod sends, egress what it is sent. Attaching again replaces our programs; those
        of others stay, and get every packet that ours have seen.
        HarnessError when the interface is gone or the kernel refuses.
        """
        with libbpf.messages() as said:
            try:
                _attach(ifindex, libbpf.BPF_TC_INGRESS, self._from_pod)
                _attach(ifindex, libbpf.BPF_TC_EGRESS, self._to_pod)
            except OSError as error:
                raise _failure(error, said) from error

    def stats(self) -> CtStats:
        """The programs' counters, summed over CPUs."""
        cpus = libbpf.call("libbpf_num_possible_cpus")
        per_cpu = (_Stats * cpus)()
        key = ctypes.c_uint32(0)
        libbpf.call("bpf_map_lookup_elem", self._stats_fd, ctypes.byref(key), ctypes.byref(per_cpu))
        return CtStats(sum(cpu.created for cpu in per_cpu), sum(cpu.create_failed for cpu in per_cpu))

    def close(self) -> None:
        """Close the descriptors. Pinned tables and attached programs stay. May be called twice."""
        handle, self._handle = self._handle, None
        if handle is not None:
            libbpf.library().bpf_object__close(handle)
            self.tcp_fd = self.any_fd = self._stats_fd = -1


def _configure(handle: int, identity: int, timeouts: CtTimeouts) -> None:
    """Write the constants into the object; from load on they are frozen, and the verifier knows their values."""
    size = ctypes.c_size_t()
    address = libbpf.find("bpf_map__initial_value", _map(handle, _CONFIG_MAP), ctypes.byref(size))
    if size.value != ctypes.sizeof(_Config):
        raise HarnessError(
            f"{OBJECT.name} is of another version: its constants are {size.value} bytes; build it again"
        )
    config = _Config(timeouts.tcp, timeouts.syn, timeouts.close, timeouts.any, _REPORT_INTERVAL_S, identity)
    ctypes.memmove(address, ctypes.byref(config), ctypes.sizeof(config))


def _prepare(handle: int, name: str, max_entries: int, pin: Path) -> Path | None:
    """Set a table's size and take over the one that is pinned, if it fits; else return the pin to make after load."""
    table = _map(handle, name)
    libbpf.call("bpf_map__set_max_entries", table, max_entries, about=f"{name} of {max_entries} entries")
    try:
        fd = obj_get(pin)
    except FileNotFoundError:
        return pin
    try:
        if _is_table(map_info(fd), max_entries):
            libbpf.call("bpf_map__reuse_fd", table, fd, about=f"reuse {pin}")
            return None
    finally:
        os.close(fd)
    pin.unlink()
    return pin


def _is_table(info: MapInfo, max_entries: int) -> bool:
    return (info.type, info.key_size, info.value_size, info.max_entries, info.map_flags) == (
        BPF_MAP_TYPE_LRU_HASH,
        CT_KEY_DTYPE.itemsize,
        CT_VALUE_DTYPE.itemsize,
        max_entries,
        0,
    )


def _map(handle: int, name: str) -> int:
    return libbpf.find("bpf_object__find_map_by_name", handle, name.encode(), about=f"map {name}")


def _map_fd(handle: int, name: str) -> int:
    return libbpf.call("bpf_map__fd", _map(handle, name), about=f"map {name}")


def _program(handle: int, name: str) -> int:
    program = libbpf.find("bpf_object__find_program_by_name", handle, name.encode(), about=f"program {name}")
    return libbpf.call("bpf_program__fd", program, about=f"program {name}")


def detach(ifindex: int) -> bool:
    """Take our programs off an interface of the calling thread's network namespace; False when it had none.

    Needs no object: it also works after the process that attached them. The clsact stays, for it may be another's.
    """
    found = [_detach(ifindex, point) for point in (libbpf.BPF_TC_INGRESS, libbpf.BPF_TC_EGRESS)]
    return any(found)


def _attach(ifindex: int, point: int, prog_fd: int) -> None:
    hook = _hook(ifindex, point)
    try:
        libbpf.call("bpf_tc_hook_create", ctypes.byref(hook), about=f"clsact on interface {ifindex}")
    except FileExistsError:
        pass  # one clsact serves both directions
    for priority in _PRIORITIES:
        # Handle and priority are given, so that a second attach replaces the first instead of joining it.
        opts = _opts(priority, prog_fd=prog_fd, flags=libbpf.BPF_TC_F_REPLACE)
        try:
            libbpf.call(
                "bpf_tc_attach",
                ctypes.byref(hook),
                ctypes.byref(opts),
                about=f"tc program on interface {ifindex}",
            )
        except OSError as error:
            if error.errno != errno.EINVAL or priority == _PRIORITIES[-1]:
                raise
        else:
            return


def _detach(ifindex: int, point: int) -> bool:
    hook = _hook(ifindex, point)
    for priority in _PRIORITIES:
        try:
            libbpf.call("bpf_tc_detach", ctypes.byref(hook), ctypes.byref(_opts(priority)))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINVAL, errno.ENODEV):
                raise
        else:
            return True
    return False


def _hook(ifindex: int, point: int) -> libbpf.TcHook:
    return libbpf.TcHook(sz=ctypes.sizeof(libbpf.TcHook), ifindex=ifindex, attach_point=point)


def _opts(priority: int, *, prog_fd: int = 0, flags: int = 0) -> libbpf.TcOpts:
    return libbpf.TcOpts(
        sz=ctypes.sizeof(libbpf.TcOpts), prog_fd=prog_fd, flags=flags, handle=_HANDLE, priority=priority
    )


def _failure(error: OSError, said: list[str]) -> HarnessError:
    log = "".join(said).strip()[-_LOG_CHARS:]
    return HarnessError(f"BPF: {error.strerror}" + (f"\n{log}" if log else ""))
