"""The typer application, what all commands share, and the way from an error to one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import click
import typer
from rich.console import Console

from loadgen import __version__
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.units import Duration
from loadgen.core.verdict import Exit
from loadgen.report import terminal

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Load generation and chaos testbed for Kubernetes connection tracking.",
    epilog="Exit codes: 0 pass · 1 a threshold broke · 2 interrupted · 3 the harness failed · 4 usage or "
    "configuration · 5 inconclusive.",
)


def stdout() -> Console:
    """stdout, as wide as the tables need where there is no terminal to say otherwise. rich knows NO_COLOR."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = terminal.WIDTH
    return console


def say(line: str) -> None:
    """One line of progress or news, on stderr."""
    Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


def duration(option: str, text: str) -> float:
    """Seconds of a duration given as `option`; ConfigError names the option."""
    try:
        return Duration.parse(text).seconds
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def _version(value: bool) -> None:
    if value:
        print(f"loadgen {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


_KEYBOARD_INTERRUPT = 130
"""What typer makes of a KeyboardInterrupt."""


def main() -> None:
    """Entry point: every LoadgenError becomes one line and its exit code; usage errors exit with 4."""
    sys.exit(guarded(lambda: app(standalone_mode=False)))


def guarded(command: Callable[[], Any]) -> int:
    """Run `command`; its exit code, or that of its failure, which is told in one line on stderr."""
    try:
        result = command()
        if result == _KEYBOARD_INTERRUPT:
            return _fail("interrupted", Exit.INTERRUPTED)
        return result if isinstance(result, int) else Exit.PASS
    except (click.exceptions.Exit, typer.Exit) as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as shown:
        print(shown.format_message())
        return Exit.USAGE
    except click.ClickException as error:
        return _fail(f"usage: {error.format_message()}", Exit.USAGE)
    except ConfigError as error:
        return _fail(str(error), Exit.USAGE)
    except HarnessError as error:
        return _fail(f"the harness failed: {error}", Exit.HARNESS)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", Exit.INTERRUPTED)
    except BrokenPipeError:
        return Exit.HARNESS


def _fail(line: str, code: int) -> int:
    print(f"loadgen: {' '.join(line.split())}", file=sys.stderr)
    return code
