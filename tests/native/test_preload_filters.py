"""Programs under a seccomp filter for each system call that the library makes: it keeps its limit, or says in one
line that it does not, and a filter that kills does so only for calls that the documentation names."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import ON_NVIDIA
from tests.native.guests import REFUSED_TO_START, Done, Guests, compile_c
from tests.native.test_preload_quota import by_hand

ROOT = Path(__file__).resolve().parents[2]
KILL = 0
ANSWERS = (errno.EPERM,) if ON_NVIDIA else (errno.EPERM, errno.EACCES, errno.ENOSYS, KILL)
WHEN = ("use",) if ON_NVIDIA else ("exec", "use", "later")  # a context takes a second there
LIMIT, PIECE = ("2G", "1024") if ON_NVIDIA else ("100M", "60")
"""One piece fits beside a context, and two do not. The piece is in MiB."""
NOT_IN_TENANTS = ("actuator", "checks", "kernel", "operations")
SAID = ("write", "exit_group")
"""What the test's program itself prints with, and ends by."""


def numbers() -> dict[str, int]:
    """Of this machine's system calls."""
    source = ["-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"]
    return {name: int(number) for name, number in re.findall(r"define __NR_(\w+) (\d+)", compile_c(source).out)}


def made() -> list[str]:
    """The system calls of the library, by its sources."""
    files = [
        file for file in (ROOT / "native").rglob("*.?pp")
        if file.relative_to(ROOT / "native").parts[0] not in NOT_IN_TENANTS
    ]  # fmt: skip
    return sorted({name for file in files for name in re.findall(r"\bSYS_(\w+)", file.read_text())} - {*SAID})


def documented() -> set[str]:
    """The system calls that a program's own filter must let pass."""
    text = (ROOT / "docs" / "process-plane.md").read_text()
    (bullet,) = re.findall(r"Where a program filters its own system calls.*?\n(?=\n|- )", text, re.DOTALL)
    return set(re.findall(r"`(\w+)`", bullet))


CALLS = made()


def environments(guests: Guests, when: str) -> Iterator[tuple[bool, Mapping[str, str]]]:
    """With and without strictness."""
    for strict in (True, False):
        environment = by_hand(guests, RUNLIST_MEMORY=LIMIT, PIECE=PIECE, **({"RUNLIST_STRICT": "1"} if strict else {}))
        if when == "exec":
            environment["PRELOAD"] = environment.pop("LD_PRELOAD")
        yield strict, environment


def is_one_line(done: Done) -> bool:
    return done.err.startswith("runlist: ") and done.err.count("\n") == 1


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("name", CALLS)
def test_a_filtered_call(guests: Guests, name: str, when: str) -> None:
    number = numbers()[name]
    kept = "0 0 2 0 0 \n" if when == "later" else "0 2 0 0 \n"
    free = kept.replace("2", "0")
    for answer in ANSWERS:
        plain = guests.run("filtered", number, answer, when, env={**guests.environment(), "PIECE": PIECE})
        if (plain.code, plain.out) != (0, free):
            continue  # the program cannot do without it either
        for strict, environment in environments(guests, when):
            done = guests.run("filtered", number, answer, when, env=environment)
            if answer == KILL and done.code == -signal.SIGSYS:
                assert when == "exec" or name in documented()
            elif (done.code, done.out, done.err) != (0, kept, ""):
                assert is_one_line(done), done
                assert "belongs to another user" not in done.err or name == "geteuid"
                assert (done.code, done.out) == ((REFUSED_TO_START, "") if strict else (0, free)), done
