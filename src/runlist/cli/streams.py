"""Standard input, output and error as the commands may rely on them: always there, and able to take every letter."""

from __future__ import annotations

import codecs
import io
import os
import sys

_NEAREST = str.maketrans("µμ–—…×·‘’“”█▇▆▅▄▃▂▁│─╭╮╰╯•", "uu--~x.''\"\"#*+=-:._|-++++*")  # noqa: RUF001
"""One letter for one, so that columns stay aligned."""


def _nearest(error: UnicodeError) -> tuple[str, int]:
    """An error handler of codecs: what this encoding lacks, in letters that every one has."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end].translate(_NEAREST)
    return "".join(letter if letter.isascii() else "?" for letter in lacking), error.end


def prepare() -> None:
    """Where a stream is closed, one that goes nowhere takes its place and its number; no letter is an error."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their numbers
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (until the end)
    codecs.register_error("runlist", _nearest)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="runlist")


def takes_every_letter() -> bool:
    """Whether standard output is in Unicode."""
    return (sys.stdout.encoding or "").lower().startswith("utf")


def flush() -> None:
    """Write what is left. Raises OSError where that is not possible, and drops it: nobody is to try again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        drop()
        raise


def drop() -> None:
    """Drop what standard output and error have not written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
