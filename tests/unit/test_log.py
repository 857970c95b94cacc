"""The log of programs that run on."""

from __future__ import annotations

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
