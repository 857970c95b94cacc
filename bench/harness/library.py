"""The environments of programs with the library and without, and the region that some of them share."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import runlist
from bench import ROOT
from runlist.planes.process.region import Region, create
from runlist.protocol import environment_autogen as names

WITHOUT, PRELOADED, LIMITED = "without", "preloaded", "with a limit"
"""No library; the library with nothing to do; the library with a memory limit."""

AMPLE = "100G"
"""A memory limit that nothing here comes near."""

_READ = (names.PRELOAD, *names.LIBRARY)
"""How the names of the variables begin that the library reads."""

_NO_DAEMON = "/nonexistent/messages.sock"


def environment(**variables: object) -> dict[str, str]:
    """A program's whole environment: the library preloaded by hand with these variables, beside no daemon.

    It is to refuse to start where it cannot do what they say.
    """
    given = {name: str(value) for name, value in variables.items()}
    return {**without(), names.PRELOAD: str(runlist.library()), names.STRICT: "1", **given}


def without() -> dict[str, str]:
    """A program's whole environment without the library, and without anything that it reads."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_READ)}
    clean["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), clean.get("PYTHONPATH"))))
    return {**clean, names.MESSAGES: _NO_DAEMON}


def operations() -> dict[str, str]:
    """What a process needs besides, whose threads are to be clients of the scheduler of operations."""
    return {names.PRELOAD: str(runlist.library()), names.STRICT: "1", "RUNLIST_OPERATIONS": "threads"}


def setups() -> dict[str, dict[str, str]]:
    """The environments that are compared, by name."""
    return {WITHOUT: without(), PRELOADED: environment(), LIMITED: environment(RUNLIST_MEMORY=AMPLE)}


@contextlib.contextmanager
def shared_region() -> Iterator[tuple[Path, Region, dict[str, str]]]:
    """A new folder, in it a region without limits yet, as `runlist run` makes one, and the environment of the processes
    that share it.
    """
    with tempfile.TemporaryDirectory(prefix="runlist-bench-") as name:
        path, region = create(folder := Path(name), strict=True)
        with contextlib.closing(region):
            yield folder, region, environment(RUNLIST_REGION=path)
