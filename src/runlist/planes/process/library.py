"""Where this installation's C library is: `cc -I$(python -c 'import runlist; print(runlist.include())') …`."""

from __future__ import annotations

import os
from pathlib import Path

from runlist import trusted
from runlist.errors import NoPermissionError
from runlist.installed import installed
from runlist.protocol import environment_autogen as names

_LIBRARY = "librunlist.so"
_BPF = ".bpf.o"  # only these are left out where they cannot be built


def library() -> Path:
    """The shared library, librunlist.so. Raises FileNotFoundError when this installation has none,
    NoPermissionError for one that somebody else can write.
    """
    return _built(_LIBRARY)


def program(name: str) -> Path:
    """A program that was built with it. Raises as `library` does."""
    return _built(name)


def _built(name: str) -> Path:
    named = os.environ.get(names.NATIVE_BUILD)
    if not named:
        return _installed(name)
    path = Path(named).absolute() / name
    if not path.is_file():
        raise FileNotFoundError(f"{named} has no {name}: build it there, or unset {names.NATIVE_BUILD}")
    try:
        trusted.check(path)  # it will run in whatever is started, or as the daemon's
    except NoPermissionError as error:
        raise NoPermissionError(f"{names.NATIVE_BUILD} is refused: {error}") from None
    return path


def include() -> Path:
    """The directory of its header, runlist.h. Raises FileNotFoundError when this installation has none."""
    return _installed("include/runlist.h").parent


def _installed(name: str) -> Path:
    path = installed("_native", name)
    if not path.is_file():
        helps = "build it where clang or ziglang is, or install a wheel" if name.endswith(_BPF) else "reinstall runlist"
        raise FileNotFoundError(f"this installation has no {path.name} ({path}): {helps}")
    return path
