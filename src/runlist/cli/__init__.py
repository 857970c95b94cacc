"""The `runlist` command. Each subcommand is a small module of this package whose function's docstring is its help."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import typer

from runlist import __version__
from runlist.cli.common import App, report_error
from runlist.errors import ExitCode, RunlistError, UsageError

_COMMANDS = (
    "doctor", "run", "attach", "detach", "ps", "set", "suspend", "resume", "release", "policy", "daemon", "emulator",
    "demo", "top", "trace", "simulate",
)  # fmt: skip

app = App(
    name="runlist",
    help="Share an NVIDIA GPU between processes the way Linux shares a CPU, on the stock driver.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name in _COMMANDS:
    import_module(f"runlist.cli.{_name}_command").register(app)


def _version(asked: bool) -> None:
    if asked:
        print(f"runlist {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Say the version."),
) -> None:
    del version


def main(arguments: list[str] | None = None) -> None:
    """Entry point: every error becomes one line on standard error and an exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    for closed in [name for name in ("stdout", "stderr") if getattr(sys, name) is None]:
        setattr(sys, closed, open(os.devnull, "w"))  # noqa: SIM115 (until the end)
    try:
        for word in words:
            if "\0" in word:
                raise UsageError(f"{word}: no word has a null character: leave it out")
        code = app(words, prog_name="runlist", standalone_mode=False) or 0
        sys.stdout.flush()  # here, where an error can be told
        sys.exit(code)
    except RunlistError as error:
        sys.exit(report_error(error, words))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _drop_output()  # whoever read us went away; so do we, quietly
        sys.exit(ExitCode.FAILED)
    except OSError as error:
        said = RunlistError(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
        if error.filename is None:
            _drop_output()
        sys.exit(report_error(said, words))
    except Exception as error:
        if (code := _usage_error(error, words)) is not None:
            sys.exit(code)
        raise


def _drop_output() -> None:
    """Drop unwritten output: it must not be tried again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
        print(context.get_help() if context is not None else written(), file=sys.stderr)
        return code
    command = context.command_path if context is not None else "runlist"
    line = " ".join(written().split()).rstrip(".")
    return report_error(RunlistError(f"{line} (see `{command} --help`)", ExitCode(code)), words)
