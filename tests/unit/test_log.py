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
