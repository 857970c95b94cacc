"""The log of programs that run on."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest
import structlog

from runlist.log import to_standard_error


def test_what_strangers_chose_stays_in_its_line_and_moves_no_cursor(capfd: pytest.CaptureFixture[str]) -> None:
    try:
        to_standard_error()
        structlog.get_logger().warning("no\nroom\x1b[2J", reason="\x1b]0;x\x07", number=7)
    finally:
        structlog.reset_defaults()
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.rstrip("\n").isprintable()
    assert "no?room?[2J" in err
    assert "number=7" in err


def test_what_strangers_chose_is_no_long_line(capfd: pytest.CaptureFixture[str]) -> None:
    """A message of no kind that anybody knows, in a whole frame, was a line of 30 KiB, twice a second and for ever."""
    try:
        to_standard_error()
        structlog.get_logger().warning("x" * 30_000, reason="y" * 30_000, processes=list(range(10_000, 14_000)))
    finally:
        structlog.reset_defaults()
    err = capfd.readouterr().err
    assert len(err) < 3_000
    assert err.count("... (30000 letters)") == 2
    assert "10049] and 3950 more" in err


_LOGS = """
import os, structlog
from runlist import log
log.to_standard_error()
structlog.get_logger().warning("nobody reads this")
log.write("nor this\\n")
os.write(1, b"went on")
os.read(0, 1)
structlog.get_logger().warning("somebody reads " + "this" * 200, more=["that" * 200] * 9)
"""


def test_nobody_who_logs_waits_for_who_reads_it() -> None:
    """A terminal that was stopped by Ctrl-S, a journal that hangs: a daemon that waits schedules nobody."""
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    filled = 0
    while True:
        try:
            filled += os.write(ours, b"x" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(ours, True)
    with subprocess.Popen(
        [sys.executable, "-c", _LOGS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=ours
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        os.close(ours)
        try:
            assert select.select([process.stdout], [], [], 20)[0], "it waits"
            assert process.stdout.read(7) == b"went on"
            while filled:
                filled -= len(os.read(theirs, filled))
            process.stdin.close()
            with open(theirs, "rb") as pipe:
                said = pipe.read().decode()
        finally:
            process.kill()
    assert "this" * 200 in said, "a line of several pages is one of the log all the same"
    assert said.count("that") == 9 * 200
    assert said.count("\n") == 1
