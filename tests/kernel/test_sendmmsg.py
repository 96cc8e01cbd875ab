"""Several datagrams with one system call, and its errors."""

from __future__ import annotations

import socket

import pytest

from loadgen.kernel.sendmmsg import Sender


@pytest.fixture
def receiver() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(5)
        yield sock


@pytest.mark.parametrize("datagrams", [(b"one", b"another"), (b"alone",), (b"with\0zero", b"")])
def test_the_datagrams_arrive_whole_and_in_order(receiver: socket.socket, datagrams: tuple[bytes, ...]) -> None:
    sender = Sender()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(receiver.getsockname())
        for _ in range(2):  # the headers are used again
            assert sender.send(sock.fileno(), datagrams) == len(datagrams)
            assert tuple(receiver.recv(100) for _ in datagrams) == datagrams


def test_what_cannot_be_sent_is_an_error_or_a_smaller_count(receiver: socket.socket) -> None:
    sender, too_large = Sender(), bytes(70_000)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(receiver.getsockname())
        assert sender.send(sock.fileno(), (b"fits", too_large)) == 1
        with pytest.raises(OSError, match="sendmmsg: Message too long"):
            sender.send(sock.fileno(), (too_large, b"fits"))
    with pytest.raises(OSError, match="sendmmsg: Bad file descriptor"):
        sender.send(-1, (b"a",))
