"""NV_STATUS as exceptions: each number its own class, one line, and the right exit code."""

from __future__ import annotations

import pytest

from runlist.errors import ExitCode, RunlistError
from runlist.planes.nvidia.rm import status
from runlist.planes.nvidia.rm.status_autogen import NAMES

FAILURES = sorted(number for number in NAMES if number)


def test_every_number_has_its_own_class() -> None:
    classes = [status.error_class(number) for number in FAILURES]
    assert len(set(classes)) == len(FAILURES)
    assert status.RmError not in classes


@pytest.mark.parametrize("number", FAILURES)
def test_every_number_is_raised_as_itself_in_one_line(number: int) -> None:
    with pytest.raises(status.error_class(number)) as caught:
        status.check(number, "PREEMPT on 0x5c000015")
    error = caught.value
    assert isinstance(error, RunlistError)
    assert (error.status, error.name, error.call) == (number, NAMES[number], "PREEMPT on 0x5c000015")
    line = str(error)
    assert "\n" not in line
    assert line.startswith(f"PREEMPT on 0x5c000015: {NAMES[number]} (0x{number:02X}): ")
    assert len(line.rpartition(": ")[2]) > 10


def test_ok_is_no_error() -> None:
    status.check(0, "anything")


@pytest.mark.parametrize(
    ("number", "cls"),
    [
        (0x1B, status.InsufficientPermissions),
        (0x1F, status.InvalidArgument),
        (0x23, status.InvalidClient),
        (0x56, status.NotSupported),
        (0x57, status.ObjectNotFound),
    ],
)
def test_the_common_ones_have_names(number: int, cls: type[status.RmError]) -> None:
    assert status.error_class(number) is cls


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("NV_ERR_INSUFFICIENT_PERMISSIONS", ExitCode.NO_PERMISSION),
        ("NV_ERR_INVALID_ACCESS_TYPE", ExitCode.NO_PERMISSION),
        ("NV_ERR_INVALID_CLIENT", ExitCode.NO_TARGET),
        ("NV_ERR_OBJECT_NOT_FOUND", ExitCode.NO_TARGET),
        ("NV_ERR_INVALID_OBJECT_HANDLE", ExitCode.NO_TARGET),
        ("NV_ERR_NOT_SUPPORTED", ExitCode.NOT_SUPPORTED),
        ("NV_ERR_INVALID_ARGUMENT", ExitCode.FAILED),
        ("NV_ERR_TIMEOUT", ExitCode.FAILED),
    ],
)
def test_exit_codes(name: str, code: ExitCode) -> None:
    number = next(number for number, known in NAMES.items() if known == name)
    assert status.error_class(number)(number, "x").exit_code == code


def test_a_number_from_the_future_is_told_as_a_number() -> None:
    with pytest.raises(status.RmError, match=r"NV_STATUS 0xABCD \(0xABCD\)") as caught:
        status.check(0xABCD, "GET_INFO")
    assert type(caught.value) is status.RmError
    assert caught.value.exit_code == ExitCode.FAILED


def test_exit_codes_are_the_documented_ones() -> None:
    assert [(code.name, int(code)) for code in ExitCode] == [
        ("DONE", 0),
        ("FAILED", 1),
        ("USAGE", 2),
        ("NO_PERMISSION", 3),
        ("NO_TARGET", 4),
        ("NOT_SUPPORTED", 5),
    ]
