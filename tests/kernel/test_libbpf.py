"""Errors of libbpf are OSErrors, and its words are heard on the thread that caused them."""

from __future__ import annotations

import errno
import threading

import pytest

from loadgen.core.errors import NotSupported
from loadgen.kernel import libbpf

pytestmark = pytest.mark.kernel


def provoke(path):
    with pytest.raises(OSError, match=r"open .*: No such file or directory") as caught:
        libbpf.find("bpf_object__open_file", path.encode(), None, about=f"open {path}")
    return caught.value.errno


def test_a_null_pointer_is_an_error_with_its_errno_and_its_words():
    with libbpf.messages() as said:
        assert provoke("/nowhere/one.bpf.o") == errno.ENOENT
    assert "/nowhere/one.bpf.o" in "".join(said)


def test_a_negative_number_is_an_error_with_its_errno():
    with pytest.raises(FileNotFoundError, match="the pin: No such file or directory"):
        libbpf.call("bpf_obj_get", b"/nowhere/pin", about="the pin")
    with pytest.raises(FileNotFoundError, match="bpf_obj_get: "):
        libbpf.call("bpf_obj_get", b"/nowhere/pin")


def test_threads_hear_of_their_own_failures_only():
    heard = {}
    both = threading.Barrier(2)

    def listen(name):
        with libbpf.messages() as said:
            both.wait()
            for _ in range(20):
                provoke(f"/nowhere/{name}.bpf.o")
            heard[name] = said

    threads = [threading.Thread(target=listen, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("one", "two"):
        assert len(heard[name]) >= 20
        assert all(f"/nowhere/{name}.bpf.o" in message for message in heard[name])


def test_nobody_listens_and_nothing_is_printed(capfd):
    provoke("/nowhere/one.bpf.o")
    assert capfd.readouterr() == ("", "")


def test_a_machine_without_the_library(monkeypatch):
    monkeypatch.setattr(libbpf, "_LIBRARY", "libbpf.so.none")
    with pytest.raises(NotSupported, match=r"libbpf: libbpf.so.none: .*; apt install libbpf1"):
        libbpf.library.__wrapped__()
