import numpy as np

from loadgen.core.progress import Progress
from loadgen.core.samples import SAMPLE_DTYPE, Mark, Outcome, Reading, SampleBatch
from loadgen.core.units import NS_PER_S

S = NS_PER_S


def batch(count: int, at_s: int, latency_s: float = 0.01, outcome: Outcome = Outcome.OK) -> SampleBatch:
    rows = np.zeros(count, dtype=SAMPLE_DTYPE)
    rows["done_ns"] = at_s * S
    rows["due_ns"] = rows["done_ns"] - round(latency_s * S)
    rows["outcome"] = outcome
    return SampleBatch("dns.lookup", "main", "x", rows.tobytes())


def test_before_anything_happens_it_is_being_set_up() -> None:
    assert Progress().line(5 * S) == "set-up"


def test_a_line_has_the_phase_the_rates_and_the_gauges() -> None:
    progress = Progress()
    progress.add(Mark(10 * S, "phase", "burst"))
    progress.add(Mark(11 * S, "fault", "race"))
    progress.add(batch(1000, at_s=11))
    progress.add(batch(500, at_s=20))
    progress.add(batch(2, at_s=20, latency_s=5.0))
    progress.add(batch(1, at_s=20, outcome=Outcome.UNKNOWN))
    progress.add(batch(0, at_s=20))
    progress.add(Reading(20 * S, "ct.tcp.entries", 2_104_332.0))
    progress.add(Reading(20 * S, "some.other", 1.0))
    assert progress.line(22 * S) == (
        "burst 12 s · dns.lookup 1,503 (101/s), 2 over 1 s, 1 failed or given up · CT entries 2,104,332"
    )


def test_what_has_stopped_has_no_rate() -> None:
    progress = Progress()
    progress.add(Mark(0, "phase", "main"))
    progress.add(batch(1000, at_s=1))
    assert progress.line(60 * S) == "main 60 s · dns.lookup 1,000"
