"""The errors a person sees: one line that says what to do, and the exit code of the command that meets it."""

from __future__ import annotations

from enum import IntEnum

from runlist.text import printable

LONGEST = 5_000
"""Characters of a message."""


class ExitCode(IntEnum):
    """Exit codes of every `runlist` command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NO_PERMISSION = 3
    NO_TARGET = 4
    NOT_SUPPORTED = 5


class RunlistError(Exception):
    """An error with a message fit for a person. `exit_code` is the exit code of a command that ends with it."""

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, exit_code: ExitCode | None = None) -> None:
        super().__init__(_line(message))
        if exit_code is not None:
            self.exit_code = exit_code


class UsageError(RunlistError):
    """The request itself is wrong: a bad value, an unknown name."""

    exit_code = ExitCode.USAGE


class NoPermissionError(RunlistError):
    """The caller has no right to the target."""

    exit_code = ExitCode.NO_PERMISSION


class NoTargetError(RunlistError):
    """The process, task or daemon that was named does not exist."""

    exit_code = ExitCode.NO_TARGET


class NotSupportedError(RunlistError):
    """This machine, GPU or driver cannot do it."""

    exit_code = ExitCode.NOT_SUPPORTED


class NotAdmitted(RunlistError):
    """A policy, or a limit, refuses a task that works already: it is left to the driver's own scheduling."""


class MissingExtra(NotSupportedError):
    """A library is not installed, which an extra of Runlist's brings along."""

    def __init__(self, what: str, library: str, extra: str) -> None:
        super().__init__(f"{what} needs {library}: pip install 'runlist[{extra}]'")


class ContextGone(RunlistError):
    """The process freed the client of a context: nothing is left of it."""


class Ended(BaseException):
    """Raised inside a user's code by whoever calls it, and no fault of that code. Not an Exception, so that an
    `except Exception` there does not swallow it.
    """


def _line(message: str) -> str:
    """One line that can be read, whatever it quotes: without its middle where it is too long."""
    line = printable(message)
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 + 3 :]}"
