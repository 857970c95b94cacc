"""Writing and removing the daemon's units. What somebody changed by hand is never overwritten or removed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runlist import files
from runlist.errors import RunlistError, UsageError
from runlist.paths import config_home

UNITS = ("runlist.service", "runlist.socket")
SYSTEM = Path("/etc/systemd/system")
_SOURCE = Path(__file__).parent
_PROGRAM = "ExecStart=/usr/bin/runlist daemon"
_HEAD = "# Written by `runlist daemon --install`, which replaces it unless you change it. sha256: "
_HEADED = re.compile(rf"{re.escape(_HEAD)}([0-9a-f]{{64}})\n(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a unit: written, renewed, same, changed (by hand, and left alone), removed or missing."""

    path: Path
    what: str


def folder(user: bool) -> Path:
    """Where units go: the machine's, or this user's. Raises NoPermissionError for who has no home."""
    if not user:
        return SYSTEM
    return config_home() / "systemd" / "user"


def contents(user: bool, program: str, words: Sequence[str], group: str | None) -> dict[str, str]:
    """The units by name. `words` are the daemon's own; `group` is theirs who may use the socket."""
    quoted = " ".join(map(_quoted, (program, "daemon", *words)))
    found = {}
    for name in UNITS:
        text = (_SOURCE / "user" / name if user else _SOURCE / name).read_text()
        text = text.replace(_PROGRAM, f"ExecStart={quoted}")
        if group is not None:
            text = text.replace("SocketMode=0600", f"SocketMode=0660\nSocketGroup={_quoted(group)}")
        found[name] = f"{_HEAD}{_digest(text)}\n{text}"
    return found


def program() -> str:
    """The `runlist` that is to be started: an absolute path. Raises UsageError where there is none."""
    beside = Path(sys.executable).with_name("runlist")
    found = str(beside) if beside.exists() else shutil.which("runlist")
    if found is None:
        raise UsageError("no program runlist is installed: install the package first")
    return os.path.abspath(found)


def install(where: Path, units: dict[str, str]) -> list[Done]:
    """Write units. Raises RunlistError where that cannot be done."""
    done = []
    with _telling(where):
        where.mkdir(parents=True, exist_ok=True)
        for name, text in units.items():
            path = where / name
            state = _state(path)
            if state == "ours" and path.read_text() == text:
                done.append(Done(path, "same"))
            elif state == "changed":
                done.append(Done(path, "changed"))
            else:
                files.replace(path, text.encode())
                done.append(Done(path, "written" if state == "missing" else "renewed"))
    return done


def uninstall(where: Path) -> list[Done]:
    """Remove the units that `install` wrote. Raises RunlistError where that cannot be done."""
    done = []
    with _telling(where):
        for name in UNITS:
            path = where / name
            state = _state(path)
            if state == "ours":
                path.unlink()
            done.append(Done(path, {"ours": "removed"}.get(state, state)))
    return done


def _state(path: Path) -> str:
    """Missing, ours, or changed by somebody."""
    if not os.path.lexists(path):
        return "missing"
    if path.is_symlink() or not path.is_file():
        return "changed"
    match = _HEADED.fullmatch(path.read_text(errors="replace"))
    return "ours" if match is not None and _digest(match[2]) == match[1] else "changed"


@contextlib.contextmanager
def _telling(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "be root, or take --user" if where == SYSTEM else "name another folder by XDG_CONFIG_HOME"
        raise RunlistError(f"{error.filename or where}: {error.strerror}: {advice}") from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _quoted(word: str) -> str:
    """A word as systemd reads it: % and $ mean something to it. Raises UsageError for one that no unit can hold."""
    if not word.isprintable():
        raise UsageError(f"{word!r}: no unit can name this")
    plain = word.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w@%$+=:,./-]+", plain, re.ASCII):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
