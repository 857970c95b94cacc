"""Shared by the commands: the app, options, JSON, errors."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import msgspec
import typer
from typer.core import TyperCommand, TyperGroup

from runlist.cli.complete import devices, policies
from runlist.cli.streams import takes_every_letter
from runlist.errors import MissingExtra, NoPermissionError, RunlistError, UsageError
from runlist.planes.registry import PLANES
from runlist.text import printable, short
from runlist.units import parse_number

if TYPE_CHECKING:
    from runlist.client import Client

_WHOLE = re.compile(r"[+-]?\d{1,400}", re.ASCII)
_WIDTH = re.compile(r"0*[1-9]\d{0,8}", re.ASCII)

_COLOURS = {"red": "1;31", "green": "32", "yellow": "33"}

RUN_OTHERS = frozenset({"run", "emulator"})
"""Commands that end in the words of another command."""


class _Helped:
    """Help that stands a terminal of any width."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with _widths_that_are_some():
            super().format_help(ctx, formatter)  # type: ignore[misc]


class Command(_Helped, TyperCommand):
    """A command that refuses empty words, and an option that is given twice: one of the two would not count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param, times in Counter(order).items():
            option = param.param_type_name == "option"
            if given.get(param.name or "") == "":
                raise UsageError(
                    f"{'/'.join(param.opts) if option else param.human_readable_name} is empty: give it a value"
                )
            if option and times > 1 and not param.multiple:
                raise UsageError(f"{'/'.join(param.opts)} is given {times} times: give it once")
        return super().parse_args(ctx, args)


class Group(_Helped, TyperGroup):
    """Commands with a word in common."""


@contextlib.contextmanager
def _widths_that_are_some() -> Iterator[None]:
    """What writes the help takes these for whole numbers: 0 columns would leave nothing of it."""
    wrong = {name: os.environ.get(name, "1") for name in ("COLUMNS", "TERMINAL_WIDTH")}
    wrong = {name: text for name, text in wrong.items() if not _WIDTH.fullmatch(text)}
    for name in wrong:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(wrong)


class App(typer.Typer):
    """Commands of this kind."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
            unwrapped = "\n\n".join(" ".join(one.split()) for one in paragraphs)  # the terminal's width is another
            return super(App, self).command(name, cls=Command, **{"help": unwrapped, **options})(function)

        return add


def whole(least: int, most: int | None = None) -> Callable[[Any], int]:
    """A parser of whole numbers from `least` to `most`, in the digits 0 to 9."""
    allowed = f"{least} or more" if most is None else f"{least} to {most}"

    def parse(text: Any) -> int:
        value = int(str(text)) if _WHOLE.fullmatch(str(text)) is not None else None
        if value is None or value < least or (most is not None and value > most):
            raise typer.BadParameter(f"take a whole number, {allowed}, not {short(str(text))!r}")
        return value

    parse.__name__ = "number"  # in the help
    return parse


def number(least: float, most: float) -> Callable[[Any], float]:
    """A parser of numbers from `least` to `most`, in the digits 0 to 9."""

    def parse(text: Any) -> float:
        value = parse_number(str(text))
        if value is None or not least <= value <= most:
            raise typer.BadParameter(f"take a number, {least:g} to {most:.10g}, not {short(str(text))!r}")
        return value

    parse.__name__ = "number"
    return parse


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="|".join(PLANES),
        help="Which device; default $RUNLIST_DEVICE, else nvidia.",
        autocompletion=devices,
    ),
]
Pid = Annotated[int, typer.Argument(parser=whole(1), metavar="PID", help="Process id.")]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="NAME|FILE.py",
        help="Switch the daemon to this policy: a name, or a .py file.",
        autocompletion=policies,
    ),
]
PolicyOptions = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="An option of the policy.")
]


def print_json(value: Any, *, on_a_line: bool = False) -> None:
    """One JSON document on standard output, indented unless it is to be `on_a_line`."""
    try:
        octets = msgspec.json.encode(value)
    except UnicodeEncodeError:  # a file's name need not be text; JSON is
        import json

        octets = json.dumps(msgspec.to_builtins(value), ensure_ascii=False).encode(errors="replace")
    if not takes_every_letter():
        import json

        octets = json.dumps(json.loads(octets)).encode()
    print((octets if on_a_line else msgspec.json.format(octets)).decode())


def say(line: str, colour: str = "") -> None:
    """Print a note, or an error in its colour, as one line on standard error, which may be full or closed. Commands and
    files are called what their users like.
    """
    with contextlib.suppress(OSError):
        print(f"{painted('runlist:', colour, sys.stderr)} {printable(line)}", file=sys.stderr, flush=True)


def connected(device: str | None, *, start: bool = False) -> Client:
    """A connection to the daemon, which may be started for it; where it is silent, a line says why."""
    from runlist.client import Client

    return Client.open(start=start, device=device, on_silence=_say_silent)


def _say_silent(pid: int) -> None:
    from runlist.proc.process import is_stopped

    if is_stopped(pid):
        say(f"the daemon, process {pid}, is stopped: `kill -CONT {pid}` lets it go on; Ctrl-C gives up")
    else:
        say(f"the daemon, process {pid}, does not answer yet: wait, or look at its log; Ctrl-C gives up")


def painted(text: str, colour: str, stream: TextIO) -> str:
    """Text in a colour (red, green, yellow; none: as it is) where it goes to a terminal that shows colours and the user
    has not set NO_COLOR.
    """
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    if colour not in _COLOURS or plain or not stream.isatty():
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def report_error(error: RunlistError, words: Sequence[str]) -> int:
    """One line on standard error, and the error as JSON on standard output where JSON was asked for; returns the exit
    code.
    """
    line = printable(str(error))
    say(line, "red")
    if "--json" in _own(words):
        print_json({"error": line, "exit_code": int(error.exit_code)})
    return int(error.exit_code)


def _own(words: Sequence[str]) -> Sequence[str]:
    """The words that are ours, not those of a command that is run."""
    if words and words[0] in RUN_OTHERS:
        return list(takewhile(lambda word: word.startswith("-") and word != "--", words[1:]))
    return words[: words.index("--")] if "--" in words else words


def key_values(words: Iterable[str]) -> dict[str, str]:
    """`key=value` words as a dict. Raises UsageError for anything else, and for a key that comes twice."""
    pairs: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise UsageError(f"{word}: write key=value")
        if key in pairs:
            raise UsageError(f"{key} is given twice: give it once")
        pairs[key] = value
    return pairs


def can_draw() -> bool:
    """Whether pictures can be drawn here: what draws them is not installed with Runlist itself."""
    return importlib.util.find_spec("matplotlib") is not None


def draws(option: str) -> None:
    """Check before the work that its picture can be drawn. Raises MissingExtra."""
    if not can_draw():
        raise MissingExtra(option, "matplotlib", "plot")


PICTURES = (".png", ".pdf", ".svg")


def output_file(option: str, path: Path, endings: Sequence[str] = ()) -> None:
    """Check a file that is to be written, before the work for it begins. Raises UsageError for a name that is none, and
    NoPermissionError.
    """
    shown = f"{option} {path}"
    if str(path) == "-":
        raise UsageError(f"{shown}: it goes to a file, not to standard output: name one")
    try:
        if path.is_dir():
            raise UsageError(f"{shown}: this is a folder: name a file in it")
        if endings and path.suffix.lower() not in endings:
            raise UsageError(f"{shown}: take a name that ends in {' or '.join(endings)}")
        if not path.parent.is_dir():
            raise UsageError(f"{shown}: there is no folder {path.parent}: make it first")
        writable = os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError as error:  # a name that is too long
        raise UsageError(f"{shown}: {error.strerror}") from None
    if not writable:
        raise NoPermissionError(f"{shown}: you may not write there")
