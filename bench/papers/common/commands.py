"""What the commands of all papers have: how they end, and what is there while they run."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence

from bench.harness import library
from runlist.client import Client
from runlist.errors import RunlistError

INTERRUPTED = 130


def main(parser: argparse.ArgumentParser, words: Sequence[str] | None) -> int:
    """Calls what the arguments have as `function`. Exit code 0 when all was done; 1 when something could not be; 2 for
    bad input; 130 when interrupted.
    """
    arguments = parser.parse_args(words)
    try:
        with _terminated_is_interrupted():
            code: int = arguments.function(arguments)
            return code
    except RunlistError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: run the same again to go on", file=sys.stderr)
        return INTERRUPTED


@contextlib.contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def environment() -> dict[str, str]:
    """Of the programs: without Runlist's library, and with absolute paths."""
    clean = library.without()
    folders = filter(None, clean["PYTHONPATH"].split(os.pathsep))
    return {**clean, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, folders)), "PYTHONUNBUFFERED": "1"}


@contextlib.contextmanager
def daemon() -> Iterator[Client]:
    """The daemon that is there, or one that ends with us."""
    try:
        client, ours = Client.open(), False
    except RunlistError:
        client, ours = Client.open(start=True), True
    with client:
        try:
            yield client
        finally:
            if ours:
                with contextlib.suppress(RunlistError):
                    client.stop()
