import pytest

from loadgen.core.units import Duration, format_count, format_duration


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("60s", 60_000_000_000),
        ("1m30s", 90_000_000_000),
        ("12h", 43_200_000_000_000),
        ("500ms", 500_000_000),
        ("2.5s", 2_500_000_000),
        ("7us", 7_000),
        ("3ns", 3),
        ("0s", 0),
    ],
)
def test_a_duration_is_read_as_go_writes_it(text: str, ns: int) -> None:
    assert Duration.parse(text) == ns


@pytest.mark.parametrize("text", ["60", "", "s", "60 s", "1m 30s", "-5s", "abc", "5d", "1e3s", "60s!"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="60s"):
        Duration.parse(text)


def test_a_number_without_a_unit_is_named_as_such() -> None:
    with pytest.raises(ValueError, match="it has no unit"):
        Duration.parse("60")


@pytest.mark.parametrize("ns", [0, 1, 1_500, 2_500_000, 2_500_000_000, 43_200_000_000_000, 83_512_345_678])
def test_its_text_is_exact(ns: int) -> None:
    assert Duration.parse(str(Duration(ns))) == ns


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (5.0123, "5.012s"), (43200, "12h"), (450, "7m30s"), (0.35, "350ms"), (1.2e-5, "12us"), (-2, "-2s")],
)
def test_seconds_are_shown_in_their_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_counts_are_grouped() -> None:
    assert format_count(12345678) == "12,345,678"
    assert format_count(0.98765) == "0.9877"
