"""Times, memory and what follows from a node type."""

import pytest

from loadgen.core.simulate.fleet import AgentSettings, Memory, NodeType, Sizes, Span, Times


@pytest.mark.parametrize(("text", "value"), [("2TiB", 2 << 40), ("512GB", 512 * 10**9), ("1.5GiB", 3 << 29)])
def test_memory(text: str, value: int) -> None:
    assert Memory.parse(text) == value


@pytest.mark.parametrize("text", ["2", "2 TiB", "TiB", "-1GiB", 5])
def test_bad_memory(text: object) -> None:
    with pytest.raises(ValueError, match="bad amount of memory"):
        Memory.parse(text)


def test_times_are_one_or_two_ends() -> None:
    hour = 3600 * 10**9
    assert Span.parse("2h..6h") == (2 * hour, 6 * hour)
    assert Span.parse("3h") == (3 * hour, 3 * hour)
    assert [str(Times(Span.parse(text))) for text in ("2h..6h", "90s")] == ["2h..6h", "90s"]
    for bad, why in (("6h..2h", "its end lies before"), ("2h..", "bad duration"), ("60", "no unit"), (3, "bad time")):
        with pytest.raises(ValueError, match=why):
            Span.parse(bad)


def test_capacities_and_permits() -> None:
    of = NodeType(memory="2TiB", cpus=128, workloads=(), settings=AgentSettings(bpf=Sizes(ct_any_max=65_536)))
    assert of.capacities == (16_777_216, 65_536)
    assert of.permits == 128
