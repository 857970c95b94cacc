"""What the daemon wrote into regions for its own time goes with it when it is killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from runlist.planes.process.region import Region, Snapshot
from runlist.protocol import environment_autogen as names
from tests.fixtures.daemon import Commands, Daemon, running, wait_for
from tests.fixtures.holder import Holder

GiB = 1 << 30
RUN = (sys.executable, "-m", "runlist.cli", "run")
Run = Callable[..., Holder]


@pytest.fixture
def run(commands: Commands) -> Iterator[Run]:
    """Starts holders of kind "a" under `runlist run`, with contexts."""
    with ExitStack() as stack:

        def start(*words: str) -> Holder:
            environment = {**commands.environment, "KIND": "a"}
            holder = stack.enter_context(Holder([*RUN, *words, "--"], environment))
            assert holder.do("open") == 0
            return holder

        yield start


def region_of(holder: Holder) -> Snapshot:
    """The region of its tree."""
    words = Path(f"/proc/{holder.pid}/environ").read_bytes().decode().split("\0")
    (path,) = (word.partition("=")[2] for word in words if word.startswith(f"{names.REGION}="))
    region = Region.adopt(os.open(path, os.O_RDWR), os.geteuid())
    try:
        return region.read()
    finally:
        region.close()


def test_what_a_group_left_to_a_tree(daemon: Daemon, commands: Commands, run: Run) -> None:
    """Each tree has the limit that it had before: none, or its own."""
    rule = commands.socket.with_name("rules.d") / "a.toml"
    rule.touch(0o600)
    rule.write_text('[[rule]]\nenvironment = { KIND = "a" }\nset = { memory = "1G", group = "pod" }\n')
    one, other = run(), run("--memory", "4G")
    assert one.do("take 600") == 0
    wait_for(lambda: other.do("info")[0] < 500, "what the other holds to count")
    keeper = daemon.keeper
    daemon.kill()
    wait_for(lambda: not running(keeper), "the keeper to end")
    for holder, own in (one, None), (other, 4 * GiB):
        region = region_of(holder)
        assert [region.memory, *(device.limit for device in region.devices.values())] == [own, own]
    assert [one.do("take 1500"), other.do("take 1500")] == [0, 0]
