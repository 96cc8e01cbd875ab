"""Drops the racing second query of an A/AAAA pair, which kernels since 5.6 no longer lose by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadgen.core.model import DnsRaceDrop
from loadgen.kernel import nft
from loadgen.kernel.threads import to_thread


class RaceDropFault:
    """`rules` make the table `table` in `netns` (None: here); see lab/rules.py for what they match and why."""

    def __init__(self, fault: DnsRaceDrop, netns: Path | None, table: str, rules: Sequence[dict[str, Any]]) -> None:
        self._fault = fault
        self._netns = netns
        self._table = table
        self._rules = list(rules)
        self.emulated = (
            f"the loss of a racing second query: an nft rule drops it with probability {fault.probability:.3%}, "
            "as kernels before 5.6 did in the conntrack race; its own counter counts, insert_failed does not move"
            if fault.probability
            else ""
        )

    async def inject(self) -> str:
        await self.heal()
        await to_thread(nft.apply, self._netns, self._rules)
        return f"racing second queries are dropped with probability {self._fault.probability:.3%}"

    async def heal(self) -> None:
        await to_thread(nft.delete_table, self._netns, "ip", self._table)
