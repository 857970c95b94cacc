"""The page by which kernels are stopped: whose its places are, and what becomes of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runlist import blocks
from runlist.blocks.page import RUNS, STOPS
from runlist.errors import RunlistError


def test_places_are_bounded_and_come_back(page_path: Path) -> None:
    page = blocks.Page(page_path)
    held = [page.claim(STOPS) for _ in range(16)]
    other = blocks.Page(page_path)
    with pytest.raises(RunlistError, match=r"16 use .*page already"):
        other.claim(STOPS)
    assert other.claim(RUNS) == RUNS
    page.give_back(held[3])
    assert other.claim(STOPS) == held[3]
    page.close()
    assert other.claim(STOPS) == held[0]
    other.close()


_FORKS = """
import os, sys, time
from pathlib import Path
from runlist.blocks import Stopper
stopper = Stopper(Path(sys.argv[1]))
stopper.stop()
child = os.fork()
if child == 0:
    stopper.resume()  # it is the parent's
    stopper.close()
    with Stopper(Path(sys.argv[1])):
        pass
    print(os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""


def test_who_dies_lets_go_though_its_child_lives(page_path: Path) -> None:
    """Locks are of the open file, which a child has, too, and so has its copy of the mapping."""
    page = blocks.Page(page_path)
    parent = subprocess.Popen([sys.executable, "-c", _FORKS, str(page_path)], stdout=subprocess.PIPE, text=True)
    child = 0
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not page.until_free(0.05)  # what the child said changes nothing
        parent.kill()
        parent.wait()
        assert page.until_free(30)
        os.kill(child, 0)  # it lives
    finally:
        parent.kill()
        if child:
            os.kill(child, signal.SIGKILL)
        parent.communicate()


def test_a_closed_page_says_nothing_of_others_and_takes_nothing_from_them(page_path: Path) -> None:
    working = blocks.Page(page_path)
    working.write(working.claim(RUNS), True)
    closed = blocks.Page(page_path)
    closed.close()
    for asked in (closed.running, closed.until_off, closed.told, lambda: closed.claim(STOPS)):
        with pytest.raises(RunlistError, match="was closed"):
            asked()
    looking = blocks.Page(page_path)
    assert looking.running()
    looking.close()
    working.close()
