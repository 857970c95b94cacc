"""The `runlist` command. Each subcommand is a small module of this package whose function's docstring is its help."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import typer

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


def main(arguments: list[str] | None = None) -> None:
    """Entry point: every error becomes one line on standard error and an exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    for closed in [name for name in ("stdout", "stderr") if getattr(sys, name) is None]:
        setattr(sys, closed, open(os.devnull, "w"))  # noqa: SIM115 (until the end)
    try:
        code = app(words, standalone_mode=False) or 0
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
        _drop_output()
        say(str(error.strerror or error))
        sys.exit(ExitCode.FAILED)
    except Exception as error:
        if (code := _usage_error(error)) is not None:
            sys.exit(code)
        raise


def _drop_output() -> None:
    """Drop unwritten output: it must not be tried again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage_error(error: Exception) -> int | None:
    """Typer's own complaints, shown its way. Its exception classes carry the code and how to show themselves."""
    show = getattr(error, "show", None)
    code = getattr(error, "exit_code", None)
    if show is not None and isinstance(code, int):
        show()
        return code
    return code if isinstance(code, int) else None
