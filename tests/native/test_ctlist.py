"""CtList against lists whose every entry is known, cut anywhere, torn, too long, or not lists at all."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core import ctlist
from loadgen.core.conntrack import CT_KEY_DTYPE, CT_VALUE_DTYPE, CtFlags, TupleFlags, format_entry
from loadgen.native import CtList

LINE = (
    b"TCP OUT 10.202.0.139:39164 -> 10.202.0.189:8080 expires=1793 Packets=0 Bytes=0 RxFlagsSeen=0x03 "
    b"LastRxReport=1783 TxFlagsSeen=0x03 LastTxReport=1784 Flags=0x0013 [ RxClosing TxClosing SeenNonSyn ] RevNAT=0 "
    b"SourceSecurityID=17433 IfIndex=0 BackendID=0 \n"
)


def read(data: bytes, *, json: bool = False, chunk: int = 1 << 20) -> CtList:
    reader = CtList(json=json)
    for at in range(0, len(data), chunk):
        reader.feed(data[at : at + chunk])
    reader.finish()
    return reader


def states(reader: CtList) -> dict[tuple[int, int], int]:
    rows = np.frombuffer(reader.states, dtype=ctlist.ROW)
    return {(int(row["expires"]), int(row["state"])): int(row["count"]) for row in rows}


def entries(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    keys, values = np.zeros(n, CT_KEY_DTYPE), np.zeros(n, CT_VALUE_DTYPE)
    keys["daddr"], keys["saddr"] = rng.integers(0x0A000000, 0x0A000005, n), rng.integers(0x0A010000, 0x0A010003, n)
    keys["dport"], keys["sport"] = rng.choice([80, 443], n), rng.integers(1, 65_536, n)
    keys["proto"], keys["flags"] = rng.choice([6, 17, 1], n), rng.choice([0, 1, 2, 4], n)
    values["lifetime"], values["flags"] = rng.integers(1, 50, n), rng.choice([0, 0x10, 0x11, 0x12, 0x13], n)
    values["last_tx_report"] = rng.integers(0, 40, n)
    return keys, values


def expected(keys: np.ndarray, values: np.ndarray) -> dict[tuple[int, int], int]:
    want: dict[tuple[int, int], int] = {}
    for key, value in zip(keys, values, strict=True):
        flags, tuple_flags = CtFlags(int(value["flags"])), TupleFlags(int(key["flags"]))
        state = int(flags) & 3 | (4 if flags & CtFlags.SEEN_NON_SYN else 0)
        state |= {6: 0, 17: 1, 1: 2}[int(key["proto"])] << 3
        state |= 0x20 if tuple_flags & TupleFlags.RELATED else 0
        state |= 0x80 if tuple_flags & TupleFlags.SERVICE else 0x40 if tuple_flags & TupleFlags.IN else 0
        at = int(value["lifetime"]), state
        want[at] = want.get(at, 0) + 1
    return want


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
@pytest.mark.parametrize("now", [None, 40])
def test_every_entry_of_a_text_is_counted_however_it_is_cut(chunk: int, now: int | None) -> None:
    keys, values = entries(211)
    text = "".join(format_entry(k, v, now) + "\n" for k, v in zip(keys, values, strict=True)).encode()
    reader = read(text, chunk=chunk)
    assert states(reader) == expected(keys, values)
    assert reader.complaints == []
    assert reader.counts["entries"] == 211
    assert reader.counts["now"] == (-1 if now is None else now)
    assert reader.counts["last_report"] == values["last_tx_report"].max()
    client = np.where(keys["flags"] == 4, keys["saddr"], keys["daddr"])
    assert sum(n for _, n in ctlist.addresses(reader.sources, 99)) == 211
    assert len(ctlist.addresses(reader.sources, 99)) == len(np.unique(client))


@pytest.mark.parametrize(("indent", "chunk"), [(None, 1 << 20), (2, 1 << 20), (None, 1), (2, 5)])
def test_json_says_the_same_as_text(indent: int | None, chunk: int) -> None:
    keys, values = entries(97)
    rows = []
    for key, value in zip(keys, values, strict=True):
        swapped = int.from_bytes(int(key["dport"]).to_bytes(2, "big"), "little")
        address = {name: list(int(key[name]).to_bytes(4, "big")) for name in ("daddr", "saddr")}
        rows.append(
            {
                "Key": {"DestAddr": address["daddr"], "SourceAddr": address["saddr"], "DestPort": swapped,
                        "SourcePort": 1, "NextHeader": int(key["proto"]), "Flags": int(key["flags"])},
                "Value": {"Union0": [1, 2], "Packets": 0, "Lifetime": int(value["lifetime"]),
                          "Flags": int(value["flags"]), "RevNAT": 256, "LastTxReport": int(value["last_tx_report"])},
            }
        )  # fmt: skip
    text = "".join(format_entry(k, v) + "\n" for k, v in zip(keys, values, strict=True)).encode()
    reader, other = read(json.dumps(rows, indent=indent).encode(), json=True, chunk=chunk), read(text)
    assert states(reader) == states(other) == expected(keys, values)
    assert ctlist.addresses(reader.sources, 99) == ctlist.addresses(other.sources, 99)
    assert ctlist.addresses(reader.destinations, 99) == ctlist.addresses(other.destinations, 99)
    assert reader.counts["last_report"] == other.counts["last_report"]


@pytest.mark.parametrize("address", [b"fd00::5", b"[fd00::5]"])
def test_ipv6_with_and_without_brackets(address: bytes) -> None:
    line = b"ICMPv6 IN " + address + b":0 -> " + address + b":0 related expires=9 Flags=0x0000 [ ]\n"
    reader = read(line)
    assert ctlist.addresses(reader.sources, 9) == (("fd00::5", 1),)
    assert states(reader) == {(9, 2 << 3 | 0x20 | 0x40): 1}


def test_the_layout_of_1_14_and_bugtools_markdown() -> None:
    old = LINE.replace(b"Packets=0 Bytes=0", b"RxPackets=5 RxBytes=400").replace(b" BackendID=0", b"")
    reader = read(b"# cilium bpf ct list global\n\n```\n" + old + b"\n" + LINE + b"```\n")
    assert reader.counts["entries"] == 2
    assert reader.complaints == []


def test_what_cannot_be_read_is_told_by_line_and_the_rest_is_counted() -> None:
    text = LINE + b"nonsense\n" + LINE[:90] + b"\n" + b"x" * 9000 + b"\n" + LINE + LINE[:60]
    for chunk in (1, 100, 1 << 20):
        reader = read(text, chunk=chunk)
        assert reader.counts["entries"] == 2
        assert [at for at, _ in reader.complaints] == [2, 3, 4, 6]
        assert reader.complaints[2][1] == "a line of more than 4096 bytes"


def test_a_torn_json_keeps_its_whole_entries() -> None:
    entry = b'{"Key":{"DestAddr":[1,2,3,4],"SourceAddr":[1,2,3,5],"Flags":0},"Value":{"Lifetime":5,"Flags":16}}'
    reader = read(b"[" + entry + b"," + entry + b"," + entry[:40], json=True)
    assert reader.counts["entries"] == 2
    assert reader.complaints[0][1] == "a torn conntrack entry"


def test_complaints_are_bounded_and_all_are_counted() -> None:
    reader = read(b"bad\n" * 1009)
    assert reader.counts["bad"] == 1009
    assert len(reader.complaints) == 16


@given(st.binary(max_size=2000), st.booleans(), st.integers(1, 300))
def test_any_bytes_in_any_cut_give_the_same_and_no_crash(data: bytes, is_json: bool, chunk: int) -> None:
    whole, cut = read(data, json=is_json), read(data, json=is_json, chunk=chunk)
    assert whole.counts == cut.counts
    assert whole.states == cut.states


@given(st.lists(st.integers(0, 255), max_size=8), st.integers(0, len(LINE)))
def test_a_damaged_line_is_an_entry_or_a_complaint(noise: list[int], at: int) -> None:
    damaged = (LINE[:at] + bytes(noise) + LINE[at + len(noise) :]).replace(b"\n", b" ")
    counts = read(LINE + damaged + b"\n" + LINE).counts
    assert counts["entries"] + counts["bad"] in (2, 3)  # a line that begins with # or ` is none


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError):
        CtList().feed("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        CtList(True)  # type: ignore[misc]
