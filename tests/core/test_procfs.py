"""Texts of several kernels, and texts that are something else."""

from __future__ import annotations

import pytest

from loadgen.core.procfs import NfConntrack, parse_mem_available, parse_nf_conntrack, parse_start_time

# Linux 6.18, two CPUs; `entries` is the namespace's total on every line.
SINCE_5_15 = """\
entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart
0000001f  00000002 00000010 00000000 00000001 00000000 00000000 00000003 00000000 0000000a 0000000b 00000004 00000000  00000000 00000000 00000000 00000005
0000001f  00000001 00000020 00000000 00000000 00000000 00000000 00000000 00000000 00000001 00000001 00000000 00000000  00000000 00000000 00000000 00000001
"""  # noqa: E501

# Linux 5.4: `searched` where clashres is now, delete_list where chainlength is.
BEFORE_5_10 = """\
entries  searched found new invalid ignore delete delete_list insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart
00000002  00000063 00000010 00000000 00000001 00000000 00000000 00000007 00000000 0000000a 0000000b 00000004 00000000  00000000 00000000 00000000 00000005
"""  # noqa: E501


def test_counters_are_summed_over_cpus_but_entries_is_not():
    assert parse_nf_conntrack(SINCE_5_15) == NfConntrack(
        entries=31,
        found=48,
        invalid=1,
        insert_failed=11,
        drop=12,
        early_drop=4,
        clash_resolve=3,
        chaintoolong=3,
        search_restart=6,
    )


def test_a_counter_that_the_kernel_lacks_is_named_and_not_read_from_another_column():
    counters = parse_nf_conntrack(BEFORE_5_10)
    assert counters.missing == ("clash_resolve", "chaintoolong")
    assert (counters.clash_resolve, counters.chaintoolong) == (0, 0)
    assert (counters.insert_failed, counters.drop, counters.entries) == (10, 11, 2)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("entries found\n", id="no CPU"),
        pytest.param("cpu user\n1 2\n", id="another file"),
        pytest.param("entries found\n1\n", id="short line"),
        pytest.param("entries found\n1 zz\n", id="not hexadecimal"),
    ],
)
def test_what_is_not_such_a_table_is_refused(text):
    with pytest.raises(ValueError, match=r"nf_conntrack|invalid literal"):
        parse_nf_conntrack(text)


@pytest.mark.parametrize("name", ["sleep", "a b", ") S 1 2", "(("])
def test_start_time_whatever_the_process_calls_itself(name):
    fields = ["S", *(str(n) for n in range(4, 53))]  # each field holds its own number
    assert parse_start_time(f"4711 ({name}) {' '.join(fields)}\n") == 22


def test_mem_available():
    assert parse_mem_available("MemTotal:  200 kB\nMemFree: 1 kB\nMemAvailable:    100 kB\n") == 102_400
    with pytest.raises(ValueError, match="MemAvailable"):
        parse_mem_available("MemTotal:  200 kB\n")
