"""What a churn worker told, laid out for tests."""

from __future__ import annotations

from collections import Counter

import numpy as np

from loadgen.core.samples import Mark, Message, Reading, SampleBatch, Tally

SETUP, ATTEMPT, DELETE = "sandbox.setup", "sandbox.attempt", "sandbox.delete"
CONDITION, STAMP = "sandbox.condition", "sandbox.stamp"


class Told:
    def __init__(self) -> None:
        self.said: list[Message] = []

    def rows(self, metric: str) -> np.ndarray:
        batches = [m.array() for m in self.said if isinstance(m, SampleBatch) and m.metric == metric]
        return np.concatenate(batches) if batches else np.zeros(0, dtype=[("seq", int)])

    def details(self, metric: str) -> Counter[str]:
        batches = [m for m in self.said if isinstance(m, SampleBatch) and m.metric == metric]
        return Counter(batch.details[i] for batch in batches for i in batch.array()["detail"])

    def refs(self, metric: str) -> list[str]:
        return [ref for m in self.said if isinstance(m, SampleBatch) and m.metric == metric for ref in m.refs]

    def readings(self, series: str) -> list[float]:
        return [m.value for m in self.said if isinstance(m, Reading) and m.series == series]

    @property
    def created(self) -> dict[str, int]:
        (tally,) = (m for m in self.said if isinstance(m, Tally))
        return tally.created

    def check_numbers(self) -> None:
        """Samples are numbered without gaps, and there are as many as the tally says."""
        for metric, count in self.created.items():
            assert self.rows(metric)["seq"].tolist() == list(range(count)), metric

    @property
    def notes(self) -> list[str]:
        return [m.text for m in self.said if isinstance(m, Mark) and m.kind == "note"]
