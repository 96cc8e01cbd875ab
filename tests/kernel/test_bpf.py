"""Loading the datapath: sizes, pins that are taken over or replaced, constants, and what a failure says."""

from __future__ import annotations

import json
import os
import socket
import subprocess

import pytest

from loadgen.core.errors import HarnessError, NotSupported
from loadgen.kernel import bpf, netns
from loadgen.kernel.bpf import ANY_MAP, TCP_MAP, CtDatapath, CtStats
from loadgen.kernel.links import Links
from tests.kernel.conftest import ADDRESSES, eventually

pytestmark = pytest.mark.kernel


def test_tables_are_pinned_under_ciliums_names_with_the_sizes_asked_for(pin_dir):
    with CtDatapath.load(pin_dir, 4096, 2048) as loaded:
        assert sorted(pin.name for pin in pin_dir.iterdir()) == [TCP_MAP, ANY_MAP]
        tcp, other = bpf.map_info(loaded.tcp_fd), bpf.map_info(loaded.any_fd)
    assert (tcp.max_entries, other.max_entries) == (4096, 2048)
    for info in (tcp, other):
        assert (info.type, info.key_size, info.value_size, info.map_flags) == (bpf.BPF_MAP_TYPE_LRU_HASH, 14, 56, 0)
    assert (tcp.name, other.name) == ("cilium_ct4_glob", "cilium_ct_any4_")


def test_map_info_is_what_bpftool_says(pin_dir):
    with CtDatapath.load(pin_dir, 4096, 2048) as loaded:
        info = bpf.map_info(loaded.tcp_fd)
    shown = subprocess.run(
        ["bpftool", "map", "show", "pinned", str(pin_dir / TCP_MAP), "-j"], capture_output=True, check=True
    )
    about = json.loads(shown.stdout)
    assert (about["id"], about["type"], about["bytes_key"], about["max_entries"]) == (
        info.id,
        "lru_hash",
        info.key_size,
        info.max_entries,
    )


def test_a_pinned_table_outlives_the_loader_and_is_taken_over(pin_dir):
    with CtDatapath.load(pin_dir, 4096, 2048) as loaded:
        first = bpf.map_info(loaded.tcp_fd).id
    fd = bpf.obj_get(pin_dir / TCP_MAP)
    try:
        assert bpf.map_info(fd).id == first
    finally:
        os.close(fd)
    with CtDatapath.load(pin_dir, 4096, 2048) as again:
        assert bpf.map_info(again.tcp_fd).id == first


def test_a_table_of_another_size_begins_anew_and_the_other_one_stays(pin_dir):
    with CtDatapath.load(pin_dir, 4096, 2048) as loaded:
        tcp, other = (bpf.map_info(fd).id for fd in (loaded.tcp_fd, loaded.any_fd))
    with CtDatapath.load(pin_dir, 8192, 2048) as resized:
        now = bpf.map_info(resized.tcp_fd)
        assert (now.max_entries, now.id != tcp) == (8192, True)
        assert bpf.map_info(resized.any_fd).id == other
        pinned = bpf.obj_get(pin_dir / TCP_MAP)
        assert bpf.map_info(pinned).id == now.id
        os.close(pinned)


def test_attach_twice_leaves_one_program_each_way(rig, datapath):
    rig.attach(datapath)
    for direction, program in (("ingress", "from_pod"), ("egress", "to_pod")):
        shown = netns.call(
            rig.node,
            subprocess.run,
            ["tc", "-j", "filter", "show", "dev", "lxc-one", direction],
            capture_output=True,
            check=True,
        )
        filters = [item["options"] for item in json.loads(shown.stdout) if "options" in item]
        assert [(f["bpf_name"].partition(":")[0], f["direct-action"]) for f in filters] == [(program, True)]


def tc(rig, *words: str) -> str:
    done = netns.call(rig.node, subprocess.run, ["tc", *words], capture_output=True, text=True, check=True)
    return done.stdout


def test_programs_of_others_stay_and_see_the_packets_too(rig, pin_dir, table):
    """Another's program at the same place, one of another protocol in the way, and packets that all of them see."""
    ours = ["dev", "lxc-one", "ingress"]
    index = rig.interfaces["one"]
    with CtDatapath.load(pin_dir, 4096, 2048) as datapath:
        netns.call(rig.node, datapath.attach, index)
        netns.call(rig.node, bpf.detach, index)
        theirs = ["prio", "1", "handle", "1", "bpf", "da", "obj", str(bpf.OBJECT), "sec", "tc"]
        tc(rig, "filter", "add", *ours, "protocol", "ip", *theirs)
        try:
            netns.call(rig.node, datapath.attach, index)
            netns.call(rig.node, datapath.attach, index)
            shown = tc(rig, "filter", "show", *ours)
            assert (shown.count("handle 0x1 "), shown.count("handle 0x10ad ")) == (1, 1)
            assert "protocol all pref 2" in shown
            with rig.socket("one", socket.SOCK_DGRAM, 4000) as client:
                client.sendto(b"x", (ADDRESSES["two"], 4001))
            assert eventually(lambda: len(table("any")) > 0)
            assert netns.call(rig.node, bpf.detach, index)
            assert not netns.call(rig.node, bpf.detach, index)
            left = tc(rig, "filter", "show", *ours)
            assert (left.count("handle 0x1 "), left.count("handle 0x10ad ")) == (1, 0)
        finally:
            tc(rig, "filter", "del", *ours)


def test_detach_of_what_has_nothing_or_is_gone(rig):
    with Links(rig.node) as links:
        assert not netns.call(rig.node, bpf.detach, links.index("lo"))
    assert not netns.call(rig.node, bpf.detach, 999_999)


def test_no_counts_before_the_first_packet(pin_dir):
    with CtDatapath.load(pin_dir, 4096, 2048) as loaded:
        assert loaded.stats() == CtStats(created=0, create_failed=0)


def test_an_interface_that_is_gone(rig, datapath):
    with pytest.raises(HarnessError, match="clsact on interface 999999: No such device"):
        netns.call(rig.node, datapath.attach, 999_999)


def test_a_missing_object_is_said_to_be_unbuilt(pin_dir):
    with pytest.raises(NotSupported, match=r"BPF object: .* is not there; build it"):
        CtDatapath.load(pin_dir, 4096, 2048, path=pin_dir / "ct.bpf.o")


def test_pinning_outside_a_bpffs_fails_and_says_why(tmp_path):
    with pytest.raises(HarnessError, match=r"(?s)pin .*: Invalid argument.*is not on BPF FS"):
        CtDatapath.load(tmp_path, 4096, 2048)
    assert list(tmp_path.iterdir()) == []


REFUSED = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct ct_config { __u32 numbers[6]; };
const volatile struct ct_config config SEC(".rodata.config") = {};
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 8); __uint(key_size, 14); __uint(value_size, 56); }
    cilium_ct4_global SEC(".maps"), cilium_ct_any4_global SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, __u64); }
    loadgen_ct_stats SEC(".maps");
SEC("tc") int from_pod(struct __sk_buff *skb) { return *(int *)(unsigned long)skb->data; }
SEC("tc") int to_pod(struct __sk_buff *skb) { return config.numbers[0]; }
"""


def test_the_verifiers_words_are_in_the_error(pin_dir, tmp_path):
    source, refused = tmp_path / "bad.bpf.c", tmp_path / "bad.bpf.o"
    source.write_text(REFUSED)
    headers = f"/usr/include/{os.uname().machine}-linux-gnu"
    command = ["clang", "-O2", "-g", "-target", "bpf", "-I", headers, "-c", str(source), "-o", str(refused)]
    subprocess.run(command, check=True)
    with pytest.raises(HarnessError, match=r"(?s)load .*Permission denied.*from_pod.*invalid access to packet"):
        CtDatapath.load(pin_dir, 4096, 2048, path=refused)
    assert list(pin_dir.iterdir()) == []


def test_an_object_of_another_version_is_refused(pin_dir, tmp_path):
    source, other = tmp_path / "other.bpf.c", tmp_path / "other.bpf.o"
    source.write_text(REFUSED.replace("numbers[6]", "numbers[9]"))
    headers = f"/usr/include/{os.uname().machine}-linux-gnu"
    command = ["clang", "-O2", "-g", "-target", "bpf", "-I", headers, "-c", str(source), "-o", str(other)]
    subprocess.run(command, check=True)
    with pytest.raises(HarnessError, match="constants are 36 bytes; build it again"):
        CtDatapath.load(pin_dir, 4096, 2048, path=other)
