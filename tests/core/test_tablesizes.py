"""Table sizes from memory, against Cilium's logs and its documented limits."""

import pytest

from loadgen.core.tablesizes import dynamic_sizes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("memory", "ratio", "tcp", "other"),
    [
        (33_677_205_504, 0.0025, 295_414, 147_707),  # from a real agent's log
        (8 * GIB, 0.0025, 131_072, 65_536),
        (16 * GIB, 0.0025, 150_700, 75_350),
        (512 * GIB, 0.005, 9_644_838, 4_822_419),
        (2048 * GIB, 0.0025, 16_777_216, 9_644_838),
        (2048 * GIB, 0.005, 16_777_216, 16_777_216),
    ],
)
def test_sizes(memory: int, ratio: float, tcp: int, other: int) -> None:
    assert dynamic_sizes(memory, ratio) == (tcp, other)


@pytest.mark.parametrize("ratio", [0.0, -1.0, 1.5])
def test_ratio_out_of_range(ratio: float) -> None:
    with pytest.raises(ValueError, match=r"within \(0, 1\]"):
        dynamic_sizes(GIB, ratio)
