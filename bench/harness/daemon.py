"""A daemon of a benchmark's own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from runlist.protocol import environment_autogen as names


@contextlib.contextmanager
def started(folder: Path, module: str, *words: str) -> Iterator[None]:
    """A module that runs a daemon, with these words, its sockets and its log in a folder; this process' client finds
    it. Raises RuntimeError when it does not start.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {names.SOCKET: str(folder / names.STREAM_SOCKET)}))
        ours, theirs = os.pipe()
        log = stack.enter_context((folder / "log").open("wb"))
        process = subprocess.Popen(
            [sys.executable, "-m", module, *words, "--ready-fd", str(theirs)],
            pass_fds=[theirs],
            stdout=log,
            stderr=log,
        )
        os.close(theirs)
        with open(ours, encoding="utf-8") as pipe:
            if pipe.readline().strip() != "ready":
                raise RuntimeError("the daemon did not start")
        try:
            yield
        finally:
            process.terminate()
            process.wait()
