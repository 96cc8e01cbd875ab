from __future__ import annotations

import numpy as np
import pytest

from loadgen.report.figure import log_ends, rounded, thin_line, thin_points, variant_colour

ROOM = 100


def test_a_line_that_fits_is_left_alone() -> None:
    x = y = np.arange(ROOM)
    assert thin_line(x, y, ROOM) == (pytest.approx(x), pytest.approx(y))


def test_a_thinned_line_keeps_its_spikes_and_its_ends() -> None:
    x = np.arange(100_000)
    y = np.zeros(len(x))
    y[33_333], y[77_777], y[-1] = 5.0, -5.0, 1.0
    thin_x, thin_y = thin_line(x, y, ROOM)
    assert len(thin_x) <= ROOM + 2
    assert (
        dict(zip(thin_x.tolist(), thin_y.tolist(), strict=True)).items() >= {33_333: 5, 77_777: -5, 99_999: 1}.items()
    )
    assert np.all(np.diff(thin_x) > 0)
    assert thin_x[0] == 0


def test_thinned_points_keep_the_precious_the_slowest_and_the_fastest() -> None:
    rng = np.random.default_rng(1)
    y = rng.random(10_000)
    y[4_321] = 9.0
    precious = np.zeros(len(y), dtype=bool)
    precious[::500] = True
    kept = thin_points(y, precious, ROOM)
    assert len(kept) <= ROOM
    assert set(np.flatnonzero(precious)) <= set(kept)
    assert {4_321, int(np.argmin(y))} <= set(kept)
    assert np.all(np.diff(kept) > 0)
    assert kept.tolist() == thin_points(y, precious, ROOM).tolist()


def test_too_many_precious_points_are_chosen_from_evenly() -> None:
    kept = thin_points(np.ones(1_000), np.ones(1_000, dtype=bool), ROOM)
    assert (len(kept), kept[0], kept[-1]) == (ROOM, 0, 999)


@pytest.mark.parametrize("n", [1, ROOM - 1, ROOM])
def test_points_that_fit_are_all_there(n: int) -> None:
    assert len(thin_points(np.ones(n), np.zeros(n, dtype=bool), ROOM)) == n


@pytest.mark.parametrize(
    ("low", "high", "ends"),
    [
        (0.0024, 5.0, (0.002, 5.0)),
        (0.001, 10.0, (0.001, 10.0)),
        (0.9, 120.0, (0.5, 200.0)),
        (3.0, 4.0, (2.0, 20.0)),
        (1.0, 1.0, (1.0, 10.0)),
    ],
)
def test_a_log_axis_ends_at_round_numbers_around_its_values(
    low: float, high: float, ends: tuple[float, float]
) -> None:
    assert log_ends(low, high) == pytest.approx(ends)


def test_rounding_keeps_four_digits() -> None:
    assert rounded([123456.7, 0.00123456]) == [123500.0, 0.001235]


def test_a_seventh_variant_has_a_colour_too() -> None:
    assert variant_colour(6) == variant_colour(0)
