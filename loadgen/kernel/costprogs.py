"""One program of datapath/cost.bpf.c with the table that it keeps, loaded and run by BPF_PROG_TEST_RUN.

Nothing is attached to any interface and nothing is pinned: all of it goes with the process.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import TracebackType

import msgspec

from loadgen.core.errors import HarnessError
from loadgen.kernel import libbpf

OBJECT = Path(__file__).parent / "datapath" / "cost.bpf.o"
TABLES = {"hash": "t_hash", "lru": "t_lru", "lru_own": "t_lru_own", "lru_percpu": "t_lru_percpu", "array": "t_array"}
"""Program → its table; the others keep no state."""
PROGRAMS = ("empty", "pass", *TABLES)
LEAST_BYTES = 64
_CONFIG_MAP, _PROGRESS_MAP = ".rodata.config", "progress"


class Counts(msgspec.Struct, frozen=True):
    """What a program says of its packets, over all CPUs, since it was loaded."""

    packets: int
    found: int
    inserted: int
    failed: int


class _Config(ctypes.Structure):
    """struct cost_config."""

    _fields_ = (("flows", ctypes.c_uint32), ("loop", ctypes.c_uint32))


class _Progress(ctypes.Structure):
    """struct progress."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("packets", "found", "inserted", "failed", "work"))


class CostProgram:
    """A loaded program. Closing it gives its table's memory back."""

    def __init__(self, handle: int, name: str) -> None:
        self._handle: int | None = handle
        self.name = name
        program = libbpf.find("bpf_object__find_program_by_name", handle, name.encode(), about=f"program {name}")
        self._fd = libbpf.call("bpf_program__fd", program, about=f"program {name}")
        self._progress = libbpf.call("bpf_map__fd", _map(handle, _PROGRESS_MAP))
        self.table_fd = libbpf.call("bpf_map__fd", _map(handle, TABLES[name])) if name in TABLES else -1

    @classmethod
    def load(cls, name: str, *, flows: int, capacity: int, loop: int = 0, path: Path = OBJECT) -> CostProgram:
        """Program `name` with a table of `capacity` entries, for packets of `flows` flows.

        OSError with ENOMEM when the table does not fit; HarnessError with the verifier's words for anything else.
        """
        with libbpf.messages() as said:
            handle = libbpf.find("bpf_object__open_file", os.fsencode(path), None, about=str(path))
            try:
                _choose(handle, name, capacity)
                _configure(handle, flows, loop)
                libbpf.call("bpf_object__load", handle, about=f"program {name}, {capacity:,} entries")
                return cls(handle, name)
            except OSError as error:
                libbpf.library().bpf_object__close(handle)
                if isinstance(error, MemoryError) or error.errno in (12, 7):  # ENOMEM, E2BIG
                    raise
                raise HarnessError(f"BPF: {error.strerror}\n{''.join(said).strip()[-4000:]}") from error

    def __enter__(self) -> CostProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            libbpf.library().bpf_object__close(handle)

    def run(self, packets: int, size: int = LEAST_BYTES) -> int:
        """Nanoseconds a packet, as the kernel averages over `packets` runs on the calling CPU. Releases the GIL."""
        data = (ctypes.c_char * size)()
        opts = libbpf.TestRunOpts(
            sz=ctypes.sizeof(libbpf.TestRunOpts),
            data_in=ctypes.cast(data, ctypes.c_void_p),
            data_size_in=size,
            repeat=packets,
        )
        libbpf.call("bpf_prog_test_run_opts", self._fd, ctypes.byref(opts), about=f"test run of {self.name}")
        return int(opts.duration)

    def counts(self) -> Counts:
        cpus = libbpf.call("libbpf_num_possible_cpus")
        values, zero = (_Progress * cpus)(), ctypes.c_uint32()
        libbpf.call("bpf_map_lookup_elem", self._progress, ctypes.byref(zero), ctypes.byref(values))
        return Counts(*(sum(getattr(value, field) for value in values) for field in Counts.__struct_fields__))

    def memory(self) -> int:
        """Bytes that the kernel says the table takes; 0 without a table. Kernels before 6.4 estimate."""
        if self.table_fd < 0:
            return 0
        lines = Path(f"/proc/self/fdinfo/{self.table_fd}").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("memlock:"))


def _choose(handle: int, name: str, capacity: int) -> None:
    """Leave out every other program and every other table."""
    for other in PROGRAMS:
        program = libbpf.find("bpf_object__find_program_by_name", handle, other.encode(), about=f"program {other}")
        libbpf.call("bpf_program__set_autoload", program, other == name)
    for owner, table in TABLES.items():
        libbpf.call("bpf_map__set_autocreate", _map(handle, table), owner == name)
    if name in TABLES:
        libbpf.call("bpf_map__set_max_entries", _map(handle, TABLES[name]), capacity)


def _configure(handle: int, flows: int, loop: int) -> None:
    size = ctypes.c_size_t()
    address = libbpf.find("bpf_map__initial_value", _map(handle, _CONFIG_MAP), ctypes.byref(size))
    if size.value != ctypes.sizeof(_Config):
        raise HarnessError(f"{OBJECT.name} is of another version; build it again")
    config = _Config(flows, loop)
    ctypes.memmove(address, ctypes.byref(config), ctypes.sizeof(config))


def _map(handle: int, name: str) -> int:
    return libbpf.find("bpf_object__find_map_by_name", handle, name.encode(), about=f"map {name}")
