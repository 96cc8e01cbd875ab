"""libbpf (libbpf.so.1) through ctypes: the few functions used here, and what it says about a failure."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from loadgen.core.errors import NotSupported

_LIBRARY = "libbpf.so.1"
_MESSAGE_BYTES = 1 << 18  # a verifier log comes as one message
_DEBUG = 2


class MapInfoStruct(ctypes.Structure):
    """The beginning of `struct bpf_map_info`; the kernel fills as much as it is given."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("key_size", ctypes.c_uint32),
        ("value_size", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("name", ctypes.c_char * 16),
    )


class TcHook(ctypes.Structure):
    """struct bpf_tc_hook. The structs of libbpf begin with their own size, so that they may grow."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("ifindex", ctypes.c_int),
        ("attach_point", ctypes.c_int),
        ("parent", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    )


class TcOpts(ctypes.Structure):
    """struct bpf_tc_opts."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("prog_fd", ctypes.c_int),
        ("flags", ctypes.c_uint32),
        ("prog_id", ctypes.c_uint32),
        ("handle", ctypes.c_uint32),
        ("priority", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    )


class BatchOpts(ctypes.Structure):
    """struct bpf_map_batch_opts."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("elem_flags", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class TestRunOpts(ctypes.Structure):
    """struct bpf_test_run_opts."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("data_in", ctypes.c_void_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    )


BPF_TC_INGRESS = 1
BPF_TC_EGRESS = 2
BPF_TC_F_REPLACE = 1

_int, _u32, _ptr, _str = ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_char_p
_SIGNATURES = {
    "bpf_object__open_file": (_ptr, _str, _ptr),
    "bpf_object__load": (_int, _ptr),
    "bpf_object__close": (None, _ptr),
    "bpf_object__find_map_by_name": (_ptr, _ptr, _str),
    "bpf_object__find_program_by_name": (_ptr, _ptr, _str),
    "bpf_program__fd": (_int, _ptr),
    "bpf_program__set_autoload": (_int, _ptr, ctypes.c_bool),
    "bpf_prog_test_run_opts": (_int, _int, ctypes.POINTER(TestRunOpts)),
    "bpf_map__fd": (_int, _ptr),
    "bpf_map__set_autocreate": (_int, _ptr, ctypes.c_bool),
    "bpf_map__pin": (_int, _ptr, _str),
    "bpf_map__reuse_fd": (_int, _ptr, _int),
    "bpf_map__set_max_entries": (_int, _ptr, _u32),
    "bpf_map__initial_value": (_ptr, _ptr, ctypes.POINTER(ctypes.c_size_t)),
    "bpf_map_create": (_int, _int, _str, _u32, _u32, _u32, _ptr),
    "bpf_map_lookup_elem": (_int, _int, _ptr, _ptr),
    "bpf_map_update_batch": (_int, _int, _ptr, _ptr, ctypes.POINTER(_u32), ctypes.POINTER(BatchOpts)),
    "bpf_map_lookup_batch": (
        _int, _int, _ptr, _ptr, _ptr, _ptr, ctypes.POINTER(_u32), ctypes.POINTER(BatchOpts),
    ),
    "bpf_obj_get": (_int, _str),
    "bpf_obj_get_info_by_fd": (_int, _int, _ptr, ctypes.POINTER(_u32)),
    "bpf_tc_hook_create": (_int, ctypes.POINTER(TcHook)),
    "bpf_tc_attach": (_int, ctypes.POINTER(TcHook), ctypes.POINTER(TcOpts)),
    "bpf_tc_detach": (_int, ctypes.POINTER(TcHook), ctypes.POINTER(TcOpts)),
    "libbpf_num_possible_cpus": (_int,),
}  # fmt: skip

# int (*)(enum libbpf_print_level, const char *, va_list). On x86-64 and arm64 a va_list arrives, and can be handed
# on, as one pointer.
_PRINT = ctypes.CFUNCTYPE(_int, _int, _str, _ptr)
_libc = ctypes.CDLL(None)
_listening = threading.local()


@_PRINT
def _print(level: int, text: bytes, arguments: int) -> int:
    """libbpf calls this on the thread that called it, so that each thread hears only of its own failures."""
    said: list[str] | None = getattr(_listening, "said", None)
    if said is not None and level < _DEBUG:
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        _libc.vsnprintf(message, ctypes.c_size_t(_MESSAGE_BYTES), text, ctypes.c_void_p(arguments))
        said.append(message.value.decode(errors="replace"))
    return 0


@functools.cache
def library() -> ctypes.CDLL:
    """The library with the signatures set; NotSupported when this machine has none."""
    try:
        lib = ctypes.CDLL(_LIBRARY, use_errno=True)
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(lib, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise NotSupported("libbpf", f"{_LIBRARY}: {error}", "apt install libbpf1 (1.0 or newer)") from error
    lib.libbpf_set_print(_print)
    return lib


@contextmanager
def messages() -> Iterator[list[str]]:
    """Collect what libbpf says on this thread meanwhile: its warnings, and the verifier's log."""
    said: list[str] = []
    _listening.said = said
    try:
        yield said
    finally:
        _listening.said = None


def call(name: str, *arguments: object, about: str = "") -> int:
    """Call a function that returns a number, or -errno: OSError with that errno and `about`, or its name."""
    result: int = getattr(library(), name)(*arguments)
    if result < 0:
        raise OSError(-result, f"{about or name}: {os.strerror(-result)}")
    return result


def find(name: str, *arguments: object, about: str = "") -> int:
    """Call a function that returns a pointer, or NULL and errno: OSError likewise."""
    result: int | None = getattr(library(), name)(*arguments)
    if not result:
        code = ctypes.get_errno()
        raise OSError(code, f"{about or name}: {os.strerror(code)}")
    return result
