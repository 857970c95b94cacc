"""Where this installation's C library is: `cc -I$(python -c 'import runlist; print(runlist.include())') …`."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def library() -> Path:
    """The shared library, librunlist.so. Raises FileNotFoundError when this installation has none."""
    return _installed("librunlist.so")


def include() -> Path:
    """The directory of its header, runlist.h. Raises FileNotFoundError when this installation has none."""
    return _installed("include/runlist.h").parent


def _installed(name: str) -> Path:
    path = Path(str(resources.files("runlist").joinpath("_native", *name.split("/"))))
    if not path.is_file():
        raise FileNotFoundError(f"this installation has no {path.name} ({path}): reinstall runlist")
    return path
