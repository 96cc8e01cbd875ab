"""The node's nftables rules as JSON values: kube-proxy's DNAT, NOTRACK, and the emulated loss of older kernels."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from itertools import product
from typing import Any

Rule = dict[str, Any]

KUBE_PROXY = "kube_proxy"
RACE = "loadgen_race"
RACE_COUNTER = "race"
_SCALE = 1_000_000
"""Probabilities are parts of a million: numgen draws whole numbers."""


def _payload(protocol: str, field: str) -> Rule:
    return {"payload": {"protocol": protocol, "field": field}}


def _match(left: object, right: object, op: str = "==") -> Rule:
    return {"match": {"op": op, "left": left, "right": right}}


def _prefix(network: IPv4Network) -> Rule:
    return {"prefix": {"addr": str(network.network_address), "len": network.prefixlen}}


def _chain(table: str, name: str, kind: str, hook: str, priority: int) -> Rule:
    base = {"family": "ip", "table": table, "name": name, "type": kind, "hook": hook, "prio": priority}
    return {"add": {"chain": {**base, "policy": "accept"}}}


def _rule(table: str, chain: str, *expressions: Rule) -> Rule:
    return {"add": {"rule": {"family": "ip", "table": table, "chain": chain, "expr": list(expressions)}}}


def _table(name: str) -> Rule:
    return {"add": {"table": {"family": "ip", "name": name}}}


def kube_proxy(service: IPv4Address, port: int, backends: Sequence[IPv4Address]) -> list[Rule]:
    """DNAT of the Service address to a back end drawn at random, UDP and TCP, as kube-proxy's nftables mode does.

    For pods' packets in PREROUTING and for the node's own (NodeLocal asks upstream) in OUTPUT.
    """
    choice = {"numgen": {"mode": "random", "mod": len(backends), "offset": 0}}
    targets = {"map": {"key": choice, "data": {"set": [[i, str(b)] for i, b in enumerate(backends)]}}}
    rules = [_table(KUBE_PROXY)]
    rules += [_chain(KUBE_PROXY, f"services_{hook}", "nat", hook, -100) for hook in ("prerouting", "output")]
    for hook, protocol in product(("prerouting", "output"), ("udp", "tcp")):
        rules.append(
            _rule(
                KUBE_PROXY,
                f"services_{hook}",
                _match(_payload("ip", "daddr"), str(service)),
                _match(_payload(protocol, "dport"), port),
                {"dnat": {"addr": targets}},
            )
        )
    return rules


def untracked(network: IPv4Network) -> list[Rule]:
    """NOTRACK for the storm: its connections would fill nf_conntrack, whose limit all namespaces share.

    Cilium's own table is what the storm is about; nf_conntrack is kept for the path through kube-proxy.
    """
    rules = [_table(KUBE_PROXY), _chain(KUBE_PROXY, "untracked", "filter", "prerouting", -300)]
    for field in ("saddr", "daddr"):
        rules.append(
            _rule(KUBE_PROXY, "untracked", _match(_payload("ip", field), _prefix(network)), {"notrack": None})
        )
    return rules


def untracked_nodelocal(address: IPv4Address, port: int, table: str = KUBE_PROXY) -> list[Rule]:
    """NodeLocal DNSCache's own NOTRACK rules: queries in PREROUTING, answers in OUTPUT."""
    rules = [_table(table)]
    for chain, hook, field, port_field in (
        ("nodelocal_in", "prerouting", "daddr", "dport"),
        ("nodelocal_out", "output", "saddr", "sport"),
    ):
        rules.append(_chain(table, chain, "filter", hook, -300))
        for protocol in ("udp", "tcp"):
            rules.append(
                _rule(
                    table,
                    chain,
                    _match(_payload("ip", field), str(address)),
                    _match(_payload(protocol, port_field), port),
                    {"notrack": None},
                )
            )
    return rules


def race_drop(probability: float, port: int) -> list[Rule]:
    """Drop a query whose flow is already in the table and still unanswered: the racing second one of a pair.

    Priority −150 is after conntrack (−200) has confirmed the first query's entry and before DNAT (−100). The match
    spares single-request (its reply has been seen: established), a new port, and TCP. The counter counts the drops;
    the kernel's own insert_failed does not move.
    """
    rules = [
        _table(RACE),
        {"add": {"counter": {"family": "ip", "table": RACE, "name": RACE_COUNTER}}},
        _chain(RACE, "prerouting", "filter", "prerouting", -150),
    ]
    parts = round(probability * _SCALE)
    if parts == 0:
        return rules
    draw = {"numgen": {"mode": "random", "mod": _SCALE, "offset": 0}}
    chance = [] if parts >= _SCALE else [_match(draw, parts, "<")]
    rules.append(
        _rule(
            RACE,
            "prerouting",
            _match(_payload("udp", "dport"), port),
            _match({"ct": {"key": "state"}}, "new", "in"),
            _match({"ct": {"key": "status"}}, "confirmed", "in"),
            *chance,
            {"counter": RACE_COUNTER},
            {"drop": None},
        )
    )
    return rules
