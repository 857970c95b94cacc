"""Having the dynamic linker load librunlist.so into a command and all that it starts, and why it may not."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path

from runlist.errors import NotSupportedError
from runlist.protocol import environment_autogen as names

LIBRARY = "librunlist.so"

_SEPARATORS = " :"
_MAX_SCRIPTS = 5  # a script may be run by a script; the kernel follows so many
_PT_INTERP = 3
_ELF64 = 2
_MAX_HEADERS = 1 << 20


def variables(
    library: Path, region: Path | None, *, strict: bool | None, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The variables to add to a command's environment, with its region if there is one. Libraries that are preloaded
    already stay, behind ours. With `strict` a process that cannot be limited does not start, else it says so and goes
    on; None: there is no limit yet. Raises NotSupportedError for a path that LD_PRELOAD cannot carry.
    """
    if any(separator in str(library) for separator in _SEPARATORS):
        raise NotSupportedError(
            f"{library} cannot be preloaded (LD_PRELOAD takes no spaces and colons): install runlist elsewhere, or use "
            "--no-preload"
        )
    others = [path for path in inherited.get(names.PRELOAD, "").replace(":", " ").split() if Path(path).name != LIBRARY]
    named = {names.PRELOAD: ":".join([str(library), *others])}
    if region is not None:
        named[names.REGION] = str(region)
    return named if strict is None else {**named, names.STRICT: str(int(strict))}


def turned_off(environment: Mapping[str, str]) -> str | None:
    """The variable with which an environment turns the library off, or None. Ours wins over HAMi's."""
    said = next((name for name in names.SWITCHES if environment.get(name)), None)
    return said if said is not None and is_on(environment[said]) else None


def is_on(text: str) -> bool:
    """Whether a switch's value turns it on, as the library reads it."""
    return text.lower() in names.ON


def obstacle(program: str, search: str | None = None) -> str:
    """Why the library will not be loaded into a program, or nothing. `program` is looked for in `search`, or in PATH;
    for a script its interpreter counts.
    """
    import shutil  # the daemon, which looks for no program, need not load it

    for _ in range(_MAX_SCRIPTS):
        found = shutil.which(program, path=search)
        if found is None:
            return ""
        try:
            reason, interpreter = _look(found)
        except (OSError, ValueError, IndexError, OverflowError, struct.error):  # unreadable, or no program
            return ""
        if interpreter is None:
            return f"{found} {reason}" if reason else ""
        program = interpreter
    return ""


def _look(path: str) -> tuple[str, str | None]:
    """Why not, or nothing; and a script's interpreter."""
    # It may be a FIFO, or a terminal.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            return "", None
        start = file.read(256)
        if start.startswith(b"#!"):
            words = start[2:].split(b"\n")[0].split()
            return "", os.fsdecode(words[0]) if words else None
        if _changes_rights(path, found):
            return "runs with other rights than yours (setuid, setgid or file capabilities)", None
        if not start.startswith(b"\x7fELF"):
            return "", None
        if start[4] != _ELF64:
            return "is a 32-bit program", None
        (table,) = struct.unpack_from("<Q", start, 32)
        size, count = struct.unpack_from("<HH", start, 54)
        file.seek(table)
        headers = file.read(min(size * count, _MAX_HEADERS))
        for at in range(0, len(headers) - size + 1, max(size, 56)):
            kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", headers, at)
            if kind == _PT_INTERP:
                file.seek(offset)
                linker = file.read(min(length, 4096)).rstrip(b"\0")
                return ("is linked against musl" if b"ld-musl" in linker else ""), None
    return ("" if _is_dynamic_linker(path) else "is statically linked"), None


def _is_dynamic_linker(path: str) -> bool:
    """Whether it is glibc's, which names no interpreter either: by its name, also where a program brings its own along
    and calls it with what it is to run. It loads what is to be preloaded.
    """
    name = Path(os.path.realpath(path)).name
    return name.startswith(("ld-linux", "ld-2.")) and ".so" in name


def _changes_rights(path: str, found: os.stat_result) -> bool:
    """Whether a program gets other rights when it starts: then the linker ignores LD_PRELOAD."""
    if found.st_mode & stat.S_ISUID and found.st_uid != os.getuid():
        return True
    if found.st_mode & stat.S_ISGID and found.st_mode & stat.S_IXGRP and found.st_gid != os.getgid():
        return True
    try:
        return os.getuid() != 0 and bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False
