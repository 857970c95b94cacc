"""Who answers for a process. Users may have many numbers: those that the administrator gave them for their containers
(`subuid(5)`), which they, and nobody else, may take on.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

from runlist.proc.cgroup import cgroup_of

SUBORDINATE = Path("/etc/subuid")
_MAX_BYTES = 1 << 20
_MOST_NUMBERS = 1 << 32
_Signature = tuple[int, int, int]


class Owner(msgspec.Struct, frozen=True):
    """A user with all their numbers, or one in a container that root made: those are strangers to each other, and most
    run as root, or as the same number.
    """

    uid: int
    container: str = ""

    @classmethod
    def of(cls, pid: int, uid: int) -> Owner:
        """The owner of a process of that user. Containers that a user made are all that user's."""
        return cls.within(cgroup_of(pid)[1], uid)

    @classmethod
    def within(cls, container: str, uid: int) -> Owner:
        """The owner of a process of that user in a container, or in none."""
        return cls(user_behind(uid), container if uid == 0 or ":" not in container else "")

    def __str__(self) -> str:
        return f"user {self.uid}" + (f" in container {self.container[:12]}" if self.container else "")


def user_behind(uid: int) -> int:
    """The user who has this number: itself, or the one to whom it is subordinate. Root's are of nobody in particular:
    containers of strangers have them.
    """
    try:
        found = os.stat(SUBORDINATE)
    except OSError:
        return uid
    ranges = _ranges(SUBORDINATE, (found.st_ino, found.st_size, found.st_mtime_ns))
    return next((user for user, first, count in ranges if user and first <= uid < first + count), uid)


def may_answer_for(user: int, uid: int) -> bool:
    """Whether a user answers for what runs as `uid`. Root does for all."""
    return user in (0, uid, user_behind(uid))


@lru_cache(maxsize=1)
def _ranges(path: Path, signature: _Signature) -> tuple[tuple[int, int, int], ...]:
    """Users, with the first of their numbers and how many there are, as the file says that has this signature."""
    del signature
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode(errors="replace")
    except OSError:
        return ()
    return tuple(_lines(text))


def _lines(text: str) -> Iterator[tuple[int, int, int]]:
    for line in text.splitlines():
        with contextlib.suppress(ValueError, KeyError, OverflowError):
            name, first, count = line.split(":")
            user = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
            if int(first) > 0 and 0 < int(count) <= _MOST_NUMBERS:  # root is nobody's subordinate
                yield user, int(first), int(count)
