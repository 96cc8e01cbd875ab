"""Kernel work in a thread that a cancelled caller still waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def to_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As asyncio.to_thread, but when the caller is cancelled the work still ends before the cancellation goes on.

    A thread cannot be stopped. One that goes on making namespaces while its caller takes down what it knows of
    leaves some behind.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working})
        raise
