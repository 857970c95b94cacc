"""`runlist doctor`: what it makes of checks that fail, and its exit code."""

from __future__ import annotations

import errno
import os

import pytest

from runlist import doctor
from runlist.errors import ExitCode, NoPermissionError, NotSupportedError, RunlistError
from runlist.planes.interface import Limited

FINE, LIMITED = "", Limited("only by half")


@pytest.mark.parametrize(
    ("outcomes", "states", "code"),
    [
        ([FINE, LIMITED], ["ok", "warn"], ExitCode.DONE),
        ([FINE, NoPermissionError("no right")], ["ok", "fail"], ExitCode.NO_PERMISSION),
        ([NotSupportedError("no driver"), NoPermissionError("no right")], ["fail", "fail"], ExitCode.NOT_SUPPORTED),
        ([NoPermissionError("no right"), NotSupportedError("no driver")], ["fail", "fail"], ExitCode.NO_PERMISSION),
        ([RunlistError("it does not answer"), FINE], ["fail", "ok"], ExitCode.NOT_SUPPORTED),
        ([OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), FINE], ["fail", "ok"], ExitCode.NOT_SUPPORTED),
        ([PermissionError(errno.EPERM, os.strerror(errno.EPERM)), LIMITED], ["fail", "warn"], ExitCode.NO_PERMISSION),
    ],
)
def test_the_first_failure_gives_the_exit_code_and_all_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[str | Exception], states: list[str], code: ExitCode
) -> None:
    def check(outcome: str | Exception) -> str:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    checks = [(f"check {number}", lambda outcome=outcome: check(outcome)) for number, outcome in enumerate(outcomes)]
    monkeypatch.setattr(doctor, "choose_plane", lambda device: None)
    monkeypatch.setattr(doctor, "_checks", lambda plane: iter(checks))
    findings, found = doctor.examine(None)
    assert [finding.state for finding in findings] == states
    assert found == code
    assert all("\n" not in finding.detail for finding in findings)
