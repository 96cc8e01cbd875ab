"""The ways in which loadgen itself fails. What the target does wrong is data, never one of these."""

from __future__ import annotations


class LoadgenError(Exception):
    """Root of every error that the command line turns into one line and an exit code."""


class ConfigError(LoadgenError):
    """The user asked for something that cannot be: the message says what, where and what is allowed (exit 4)."""


class NotSupported(ConfigError):
    """This machine lacks something the testbed needs (exit 4)."""

    def __init__(self, feature: str, why: str, remedy: str = "") -> None:
        self.feature = feature
        super().__init__(f"{feature}: {why}" + (f"; {remedy}" if remedy else ""))


class HarnessError(LoadgenError):
    """The harness broke: a dead agent, a full disk, a lost worker. Never a pass (exit 3)."""
