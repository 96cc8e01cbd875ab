"""The hot loops in C: walking and filling a conntrack map, reading a printed one, the TCP storm and its sink, DNS
lookups and a responder.

They release the GIL. What each takes, returns and raises is written in `_native.pyi`.
"""

from loadgen.native._native import (
    CT_ADDRESS,
    CT_EXPIRED,
    CT_KEEP,
    PAIRS_DETAILS,
    STORM_DETAILS,
    CtList,
    CtWalk,
    Pairs,
    Responder,
    Sink,
    Storm,
    ct_fill,
    ct_walk,
)

__all__ = [
    "CT_ADDRESS",
    "CT_EXPIRED",
    "CT_KEEP",
    "PAIRS_DETAILS",
    "STORM_DETAILS",
    "CtList",
    "CtWalk",
    "Pairs",
    "Responder",
    "Sink",
    "Storm",
    "ct_fill",
    "ct_walk",
]
