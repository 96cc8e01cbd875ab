"""Agents for the tests of the lab; each ends with the test that started it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadgen.kernel import netns
from tests.lab.agents import Agent


@pytest.fixture
def start_agent(lab_dir: Path, netns_factory: Callable[[str], Path]) -> Iterator[Callable[..., Agent]]:
    """`start_agent(attach=…, **cilium)`: an agent in a fresh namespace; keywords are core.model.Cilium's keys."""
    started: list[Agent] = []

    def start(**settings: object) -> Agent:
        started.append(Agent(lab_dir, netns_factory("node"), **settings))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for agent in started:
        agent.close()


@pytest.fixture(scope="module")
def agent(lab_dir: Path, request: pytest.FixtureRequest) -> Iterator[Agent]:
    """An agent with Cilium's defaults for a module's tests that leave no endpoint behind."""
    node = lab_dir / "netns" / request.module.__name__
    netns.create(node)
    shared = Agent(lab_dir, node)
    yield shared
    shared.close()
    netns.delete(node)
