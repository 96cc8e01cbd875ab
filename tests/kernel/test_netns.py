"""Threads enter namespaces and nobody else does."""

from __future__ import annotations

import os
import socket
import subprocess
import threading

import pytest

from loadgen.kernel import netns

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("no_new_threads")]


def inode(path="/proc/thread-self/ns/net"):
    return os.stat(path).st_ino


def test_call_runs_inside_and_the_caller_stays_outside(netns_factory):
    here, pod = inode(), netns_factory("pod")
    assert netns.call(pod, inode) == inode(pod) != here
    assert inode() == here


def test_call_raises_what_the_function_raises(netns_factory):
    with pytest.raises(ZeroDivisionError):
        netns.call(netns_factory("pod"), divmod, 1, 0)


def test_call_without_a_namespace_runs_on_this_thread():
    assert netns.call(None, threading.get_ident) == threading.get_ident()


def test_calls_in_many_threads_do_not_mix_namespaces(netns_factory):
    pods = [netns_factory("pod") for _ in range(4)]
    seen: dict[int, set[int]] = {}

    def look(number):
        seen[number] = {netns.call(pods[number], inode) for _ in range(20)}

    threads = [threading.Thread(target=look, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {number: {inode(pod)} for number, pod in enumerate(pods)}


def test_a_child_process_starts_in_the_namespace(netns_factory):
    pod = netns_factory("pod")
    done = netns.call(pod, subprocess.run, ["readlink", "/proc/self/ns/net"], capture_output=True, check=True)
    assert done.stdout.decode().strip() == f"net:[{inode(pod)}]"


def test_loopback_is_up_and_ipv6_is_off(netns_factory):
    pod = netns_factory("pod")

    def talk_to_myself():
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
            pass
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as v6, pytest.raises(OSError, match="assign"):
            v6.bind(("::1", 0))

    netns.call(pod, talk_to_myself)


def test_sysctl_is_set_in_that_namespace_only(netns_factory):
    one, other = netns_factory("one"), netns_factory("other")

    def read():
        with open("/proc/sys/net/ipv4/ip_default_ttl") as file:
            return int(file.read())

    before = netns.call(other, read)
    netns.sysctl(one, "net.ipv4.ip_default_ttl", before + 1)
    assert (netns.call(one, read), netns.call(other, read)) == (before + 1, before)


def test_create_does_not_take_over_an_existing_path(netns_factory):
    pod = netns_factory("pod")
    before = inode(pod)
    with pytest.raises(FileExistsError):
        netns.create(pod)
    assert inode(pod) == before


def test_delete_is_idempotent_and_takes_half_made_ones(netns_factory, lab_dir):
    pod = netns_factory("pod")
    netns.delete(pod)
    netns.delete(pod)
    assert not pod.exists()

    half_made = lab_dir / "netns" / "half-made"
    half_made.touch()
    netns.delete(half_made)
    assert not half_made.exists()


def test_enter_a_missing_namespace(lab_dir):
    with pytest.raises(FileNotFoundError):
        netns.call(lab_dir / "netns" / "nowhere", inode)
