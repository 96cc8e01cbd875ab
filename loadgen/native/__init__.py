"""The hot loops in C, behind five names: walking and filling a conntrack map, the TCP storm and its sink, and reading
a printed conntrack map.

They release the GIL. What each takes, returns and raises is written in `_native.pyi`.
"""

from loadgen.native._native import (
    CT_ADDRESS,
    CT_EXPIRED,
    CT_KEEP,
    STORM_DETAILS,
    CtList,
    CtWalk,
    Sink,
    Storm,
    ct_fill,
    ct_walk,
)

__all__ = [
    "CT_ADDRESS",
    "CT_EXPIRED",
    "CT_KEEP",
    "STORM_DETAILS",
    "CtList",
    "CtWalk",
    "Sink",
    "Storm",
    "ct_fill",
    "ct_walk",
]
