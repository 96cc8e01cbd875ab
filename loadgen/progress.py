"""Shows a run while it goes on: a live line on a terminal, a plain line every few seconds elsewhere. On stderr."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from loadgen.core.history import Ending
from loadgen.core.model import Variant
from loadgen.core.progress import Progress
from loadgen.core.samples import Mark, Message

PLAIN_EVERY_S = 10.0
_TOLD = {"phase": "phase", "fault": "fault", "gc": "GC pass"}


class Show:
    """experiment.Observer's three calls, printing to `console` (a stderr console).

    `title` is said when the first run begins, not before: a run that is refused says why and nothing else.
    """

    def __init__(self, console: Console, title: str = "", *, quiet: bool = False) -> None:
        self._console = console
        self._title = title
        self._quiet = quiet
        self._live: Live | None = None
        self._progress = Progress()
        self._told_at = 0.0
        self._name = ""

    def __enter__(self) -> Show:
        if self._console.is_terminal and not self._quiet:
            self._live = Live("", console=self._console, refresh_per_second=4, get_renderable=self._render)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def begin(self, name: str, variant: Variant, repeat: int, repeats: int) -> None:
        self._name = name
        self._progress = Progress()
        if self._title:
            self._say(self._title)
            self._title = ""
        of = f" (run {repeat + 1} of {repeats})" if repeats > 1 else ""
        self._say(f"{name}: {variant.describe or variant.name}{of}")

    def message(self, message: Message) -> None:
        self._progress.add(message)
        if isinstance(message, Mark) and message.kind in _TOLD:
            self._say(
                f"{self._name}: {_TOLD[message.kind]} {message.name}" + (f": {message.text}" if message.text else "")
            )
        if not self._live and time.monotonic() - self._told_at >= PLAIN_EVERY_S:
            self._say(f"{self._name}: {self._progress.line(time.monotonic_ns())}")

    def end(self, name: str, ending: Ending) -> None:
        self._say(f"{name}: {ending.value}")

    def _say(self, line: str) -> None:
        self._told_at = time.monotonic()
        if not self._quiet:
            self._console.print(line, markup=False, highlight=False, soft_wrap=not self._console.is_terminal)

    def _render(self) -> Text:
        return Text(f"{self._name}: {self._progress.line(time.monotonic_ns())}" if self._name else "", style="bold")
