"""`runlist run --share sms` in storms: more starts than there are places, kills of all that takes part at any moment,
full disks and few descriptors. Errors are one line, and nothing is left behind.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from runlist.sharing import attendant, mps, places
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import Commands, needs_root, run_by, wait_for
from tests.fixtures.effort import TIMES
from tests.fixtures.mps import Sharing, commands, machine, needs_stand_in, sharing

__all__ = ["commands", "machine", "sharing"]

SHARE = ("run", "--share", "sms", "--class", "batch", "--", "true")
ROUNDS = 3 * TIMES
SEED = int(os.environ.get("RUNLIST_SOAK_SEED", "1"))


def only_files_are_left(sharing: Sharing) -> None:
    """Which the next one that starts clears away."""
    wait_for(lambda: all(isinstance(one, Path) for one in sharing.left()), "no process is left")


def test_more_starts_at_once_than_there_are_places(sharing: Sharing) -> None:
    first, _ = sharing.started("batch")
    with contextlib.ExitStack() as stack:
        for _ in range(places.CLIENTS - 4):
            taken = places.take(sharing.folder(), first=False)
            assert isinstance(taken, places.Place)
            stack.callback(taken.close)
        started = [sharing.start("latency" if number < 2 else "batch") for number in range(6)]
        said = []
        for process in started:
            assert process.stdout is not None
            said.append(process.stdout.readline().strip())
    assert sorted(said) == ["", "", "", "0", "14", "15"]
    for process, place in zip(started, said, strict=True):
        _, error = process.communicate(timeout=60)
        assert process.returncode == (7 if place else 1)
        assert place or "the latency program on these SMs" in error or "batch programs share these SMs" in error
        assert error.count("\n") == (0 if place else 1)
    first.communicate(timeout=60)


def test_kills_at_any_moment(sharing: Sharing) -> None:
    """Of the attendant, the control daemon, its server, of who runs and of what is run."""
    chance = random.Random(SEED)
    for number in range(ROUNDS):
        started = [sharing.start("latency" if place == 2 else "batch") for place in range(5)]
        victims: list[Callable[[], int]] = [
            lambda: sharing.attendant,
            lambda: sharing.control,
            lambda: (mps.servers(sharing.program, sharing.folder() / attendant.PIPE) or [0])[0],
            lambda those=started: chance.choice(those).pid,  # type: ignore[misc]
            lambda those=started: run_by(chance.choice(those).pid)[0],  # type: ignore[misc]
        ]
        for _ in range(4):
            with contextlib.suppress(subprocess.TimeoutExpired):
                chance.choice(started).wait(chance.uniform(0, 0.6))
            with contextlib.suppress(OSError, ValueError, IndexError, KeyError):  # it is not there yet, or any more
                if (victim := chance.choice(victims)()) > 0:
                    os.kill(victim, chance.choice([signal.SIGKILL, signal.SIGTERM]))
        for process in started:
            _, error = process.communicate(timeout=60)
            assert "Traceback" not in error, f"round {number} of seed {SEED}: {error}"
            assert error.count("\n") <= 2, error
        only_files_are_left(sharing)
        assert sharing.commands.run(*SHARE).returncode == 0
        sharing.wait_until_nothing_is_left()


@needs_root
@needs_stand_in
@pytest.mark.parametrize("inodes", [4, 6, 8, 10])
def test_a_disk_without_room(commands: Commands, sharing: Sharing, inodes: int) -> None:
    sharing.root.mkdir(mode=0o700, exist_ok=True)
    small = ["mount", "-t", "tmpfs", "-o", f"mode=700,size=64k,nr_inodes={inodes}", "none", str(sharing.root)]
    if subprocess.run(small, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        done = commands.run(*SHARE)
        (line,) = done.stderr.splitlines()
        assert done.returncode != 0
        assert "No space left on device" in line
        assert str(sharing.root) in line or mps.CONTROL in line
        sharing.wait_until_nothing_is_left()
    finally:
        subprocess.run(["umount", "-l", str(sharing.root)], check=True)


@needs_stand_in
def test_a_disk_without_room_for_a_word_takes_no_place_from_anybody(tmp_path: Path) -> None:
    """Who has the place is told in messages alone."""
    (tmp_path / "who-1").mkdir()
    tmp_path.chmod(0o700)
    taken = places.take(tmp_path, first=False)
    assert isinstance(taken, places.Place)
    taken.close()


def test_few_descriptors(commands: Commands) -> None:
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))  # noqa: E731
    process = commands.start(*SHARE, preexec_fn=few)
    _, said = process.communicate(timeout=60)
    if ON_NVIDIA and process.returncode:  # CUDA itself needs more than that
        assert len(said.splitlines()) == 1
    else:
        assert (process.returncode, said) == (0, "")


@pytest.mark.skipif(ON_NVIDIA, reason="needs a control program that lies")
def test_a_control_daemon_that_lies(tmp_path: Path) -> None:
    program = tmp_path / "control"
    program.write_text("#!/bin/sh\nyes '12 -1 x 99999999999999999999' | head -c 3000000\n")
    program.chmod(0o755)
    numbers = mps.servers(str(program), tmp_path)
    assert numbers is not None
    assert set(numbers) == {12}
