"""Lines of paths in YAML."""

import pytest

from loadgen.simulation.yamllines import line_of, lines

TEXT = """name: x
nodes:
  big.one:
    memory: 2TiB
    workloads:
      - a
      - b
"""


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("name", 1),
        ("nodes.big.one.memory", 4),
        ("nodes.big.one.workloads[1]", 7),
        ("nodes.big.one.settings.profile", 3),
        ("unknown", None),
        ("", None),
    ],
)
def test_line_of_the_innermost_part_that_is_there(where: str, line: int | None) -> None:
    assert line_of(where, lines(TEXT)) == line
