"""Fills the CT table as a past storm would have left it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import TypeVar

import numpy as np

from loadgen import native
from loadgen.core import conntrack
from loadgen.core.model import CtFill
from loadgen.kernel import bpf

T = TypeVar("T")

_FLUSH = 0xFFFFFFFF
"""A `now` past every u32 lifetime: each entry counts as expired."""


class CtFillFault:
    """`pods` are addresses of pods; `datanodes` and `port` are whom they talked to.

    `progress` hears, on a thread of the fill's own, how many entries have been put in so far.
    """

    emulated = "the table's leftovers are put in by a fill, in seconds, instead of by hours of a storm"

    def __init__(
        self,
        fault: CtFill,
        table: Path,
        pods: Sequence[IPv4Address],
        datanodes: Sequence[IPv4Address],
        port: int,
        seed: int,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._fault = fault
        self._table = table
        self._pods = [int(a) for a in pods]
        self._datanodes = [int(a) for a in datanodes]
        self._port = port
        self._seed = seed
        self._progress = progress
        self._cancel = bytearray(4)

    async def inject(self) -> str:
        return await self._in_thread(self._fill)

    async def heal(self) -> None:
        """Flush the table, as `cilium-dbg bpf ct flush global` does."""
        await self._in_thread(self._flush)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        self._cancel[:] = bytes(4)
        working = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            self._cancel[:] = b"\1\0\0\0"
            await asyncio.wait({working})
            raise

    def _fill(self) -> str:
        began = time.monotonic()
        fd = bpf.obj_get(self._table)
        put = 0
        try:
            chunks = conntrack.storm_leftovers(
                self._fault.entries,
                now_s=int(time.monotonic()),
                expired_share=self._fault.expired,
                pods=self._pods,
                datanodes=self._datanodes,
                port=self._port,
                rng=np.random.default_rng(self._seed),
            )
            for keys, values in chunks:
                put += native.ct_fill(fd, keys.data, values.data, cancel=self._cancel)
                self._progress(put)
                if any(self._cancel):
                    break
        finally:
            os.close(fd)
        return f"{put:,} entries, {self._fault.expired:.0%} expired, in {time.monotonic() - began:.1f} s"

    def _flush(self) -> None:
        try:
            fd = bpf.obj_get(self._table)
        except FileNotFoundError:
            return
        try:
            capacity = bpf.map_info(fd).max_entries
            native.ct_walk(
                fd, capacity=capacity, batch=4096, now=_FLUSH, delete=native.CT_EXPIRED, cancel=self._cancel
            )
        finally:
            os.close(fd)
