"""The `runlist` command. Each subcommand is a small module of this package whose function's docstring is its help."""

from __future__ import annotations

from runlist.cli import own_modules  # isort: skip  (before what may be elsewhere, too)  # noqa: F401
from runlist.cli import early  # isort: skip  (before what takes its time)
from runlist import lean  # isort: skip  (before msgspec)

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from runlist.cli import complete, ending, streams
from runlist.cli.common import App, report_error
from runlist.errors import ExitCode, RunlistError, UsageError
from runlist.proc.exhaustion import passes
from runlist.version import __version__

_COMMANDS = {
    "Share a GPU": ("run", "attach", "detach", "set", "suspend", "resume", "release"),
    "See what happens": ("doctor", "ps", "top", "trace"),
    "Decide": ("policy", "rules", "profile", "daemon"),
    "Where GPUs are": ("node", "plugin", "cdi", "slurm", "exporter"),
    "Try it": ("demo", "simulate", "emulator"),
}
"""The commands under their headings in the help."""
_NAMES = frozenset(name for names in _COMMANDS.values() for name in names)


def application(words: Sequence[str] = ()) -> App:
    """The command line: all commands, or the one alone that the words begin with, as loading all of them takes longer
    than what most do.
    """
    app = App(
        name="runlist",
        help="Share an NVIDIA GPU between processes the way Linux shares a CPU, on the stock driver.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    wanted = _NAMES & set(words[:1]) or _NAMES
    for heading, names in _COMMANDS.items():
        for name in names:
            if name in wanted:
                _register(app, name, heading)
    app.callback()(_options)
    return app


def _register(app: App, name: str, heading: str) -> None:
    before = len(app.registered_commands), len(app.registered_groups)
    import_module(f"runlist.cli.{name}_command").register(app)
    for command in app.registered_commands[before[0] :]:
        command.rich_help_panel = heading
    for group in app.registered_groups[before[1] :]:
        group.rich_help_panel = heading


def _version(asked: bool) -> None:
    if asked:
        print(f"runlist {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Say the version."),
) -> None:
    del version


if sys.argv[0] != "-m":  # `python -m` has still to find and to load what calls `main`
    early.loaded()


def main(arguments: list[str] | None = None) -> None:
    """Entry point: every error becomes one line on standard error and an exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    streams.prepare()
    try:
        early.loaded()
        lean.started()
        code = _run(words)
        streams.flush()  # here, where an error can be told
    except KeyboardInterrupt:
        code = early.INTERRUPTED
    except BrokenPipeError:  # whoever read us went away; so do we, quietly
        code = ExitCode.FAILED
    except MemoryError:
        code = report_error(RunlistError("there is not enough memory for this: end something, or ask for less"), words)
    except RuntimeError as error:
        if not passes(error):
            raise
        code = report_error(RunlistError("there is no room for a thread: see `ulimit -a`"), words)
    except OSError as error:
        where = error.filename or ("standard output" if error.errno == errno.ENOSPC else None)
        room = "see `ulimit -a`" if passes(error) else None
        said = ": ".join(str(part) for part in (where, error.strerror or error, room) if part)
        code = ExitCode.FAILED
        with contextlib.suppress(OSError):
            report_error(RunlistError(said), words if error.filename else [])  # or nothing can be written
    streams.drop()
    if arguments is None:
        ending.as_noted()
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the outcome is known: nothing is to be said of what is left
        # As that of a dataclass: Python forgets that such a one was interrupted, and does not end by SIGINT.
        exec("")  # noqa: S102
        if sys.flags.inspect:  # PYTHONINSPECT is for the command: we end without a word, and do not ask for more
            os._exit(code)
    sys.exit(code)


def _run(words: list[str]) -> int:
    """Run a command; its exit code, after its error was told."""
    try:
        for word in words:
            if "\0" in word:
                raise UsageError(f"{word}: no word has a null character: leave it out")
        with complete.whole_words(), complete.for_a_shell(words):
            return int(application(words)(words, prog_name="runlist", standalone_mode=False) or 0)
    except RunlistError as error:
        return report_error(error, words)
    except SystemExit as error:  # Typer's way to leave when nobody reads
        return error.code if isinstance(error.code, int) else ExitCode.FAILED
    except Exception as error:
        if (code := _usage_error(error, words)) is None:
            raise
        return code


def _usage_error(error: Exception, words: list[str]) -> int | None:
    """Typer's own complaints, as ours. Where a command without words is no error but a question, its help is shown."""
    code = getattr(error, "exit_code", None)
    if not isinstance(code, int):
        return None
    written = getattr(error, "format_message", None)
    if written is None:
        return code
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        if text := written():  # empty where Typer's Rich has shown it as the error was made
            print(text, file=sys.stderr)
        return code
    command = context.command_path if context is not None else _named(words)
    line = " ".join(written().split()).rstrip(".")
    return report_error(RunlistError(f"{line} (see `{command} --help`)", ExitCode(code)), words)


def _named(words: list[str]) -> str:
    """The command that somebody meant, where Typer does not say."""
    command: object = typer.main.get_command(application(words))
    known = ["runlist"]
    for word in words:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        known.append(word)
    return " ".join(known)
