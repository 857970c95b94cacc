"""The `runlist` command. Each subcommand is a small module of this package whose function's docstring is its help."""

from __future__ import annotations

from runlist.cli import early  # isort: skip  (before what takes its time)

import contextlib
import errno
import signal
import sys
from importlib import import_module

import typer

from runlist.cli import streams
from runlist.cli.common import report_error, say
from runlist.errors import ExitCode, RunlistError

_COMMANDS = (
    "doctor", "run", "attach", "detach", "ps", "set", "suspend", "resume", "release", "policy", "daemon", "emulator",
    "demo", "top", "trace", "simulate",
)  # fmt: skip

app = typer.Typer(
    name="runlist",
    help="Share an NVIDIA GPU between processes the way Linux shares a CPU, on the stock driver.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _name in _COMMANDS:
    import_module(f"runlist.cli.{_name}_command").register(app)


early.loaded()


def main(arguments: list[str] | None = None) -> None:
    """Entry point: every error becomes one line on standard error and an exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    streams.prepare()
    try:
        code = _run(words)
        streams.flush()  # here, where an error can be told
    except KeyboardInterrupt:
        code = early.INTERRUPTED
    except BrokenPipeError:  # whoever read us went away; so do we, quietly
        code = ExitCode.FAILED
    except OSError as error:
        where = error.filename or ("standard output" if error.errno == errno.ENOSPC else None)
        say(f"{where}: {error.strerror}" if where else str(error.strerror or error))
        code = ExitCode.FAILED
    streams.drop()
    if arguments is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the outcome is known: nothing is to be said of what is left
    sys.exit(code)


def _run(words: list[str]) -> int:
    """Run a command; its exit code, after its error was told."""
    try:
        return int(app(words, standalone_mode=False) or 0)
    except RunlistError as error:
        return report_error(error, words)
    except SystemExit as error:  # Typer's way to leave when nobody reads
        return error.code if isinstance(error.code, int) else ExitCode.FAILED
    except Exception as error:
        if (code := _usage_error(error)) is None:
            raise
        return code


def _usage_error(error: Exception) -> int | None:
    """Typer's own complaints, shown its way. Its exception classes carry the code and how to show themselves."""
    show = getattr(error, "show", None)
    code = getattr(error, "exit_code", None)
    if show is not None and isinstance(code, int):
        with contextlib.suppress(OSError):
            show()
        return code
    return code if isinstance(code, int) else None
