"""The memory of a group: several trees that a rule holds to one limit together, and a rule's limit that changes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.fixtures.daemon import Commands, Daemon, task_of, wait_for
from tests.fixtures.holder import OUT_OF_MEMORY, Holder

GiB = 1 << 30
RUN = (sys.executable, "-m", "runlist.cli", "run")
Start = Callable[..., Holder]


@pytest.fixture
def hold(commands: Commands, daemon: Daemon) -> Iterator[Start]:
    """Starts a holder of this kind, under `runlist run` where the library is to be in it, and gives it a context."""
    with contextlib.ExitStack() as stack:

        def start(kind: str, *, inside: bool) -> Holder:
            variables = {**commands.environment, "KIND": kind}
            holder = stack.enter_context(Holder([*RUN, "--"] if inside else [], variables))
            assert holder.do("open") == 0
            wait_for(lambda: any(task.pid == holder.pid for task in daemon.client.ps()))
            return holder

        yield start


@pytest.fixture
def rule(commands: Commands, daemon: Daemon) -> Callable[[str], None]:
    """Writes the drop-in of kind "a", with these settings."""
    folder = commands.socket.with_name("rules.d")

    def write(settings: str) -> None:
        hidden = folder / ".a"
        hidden.write_text(f'[[rule]]\nenvironment = {{ KIND = "a" }}\nset = {{ {settings} }}\n')
        hidden.chmod(0o600)
        hidden.rename(folder / "a.toml")

    return write


def suspended(daemon: Daemon, *holders: Holder) -> list[bool]:
    return [task_of(daemon, holder.pid).suspended for holder in holders]


def test_trees_with_the_library_refuse_what_is_beyond_their_groups_limit(
    daemon: Daemon, hold: Start, rule: Callable[[str], None]
) -> None:
    rule('memory = "4G", group = "pod"')
    one, other = hold("a", inside=True), hold("a", inside=True)
    assert one.do("take 2000") == 0
    wait_for(lambda: other.do("info")[0] < 2200, "what the other holds to count")
    assert [other.do("take 3000"), other.do("take 1000")] == [OUT_OF_MEMORY, 0]
    assert {task.memory_limit_bytes for task in daemon.client.ps()} == {4 * GiB}
    assert {task.group for task in daemon.client.ps()} == {"pod"}
    room = other.do("info")[0]
    assert one.do("give") == 0
    wait_for(lambda: other.do("info")[0] > room + 1900, "room that was given back")
    assert other.do("take 1500") == 0
    rule('memory = "8G", group = "pod"')
    wait_for(lambda: other.do("take 3000") == 0, "a larger limit")
    rule('group = "pod"')
    wait_for(lambda: other.do("take 20000") == 0, "no limit")
    assert {task.memory_limit_bytes for task in daemon.client.ps()} == {None}
    assert suspended(daemon, one, other) == [False, False]


def test_processes_out_of_the_librarys_reach_are_suspended_together(
    daemon: Daemon, hold: Start, rule: Callable[[str], None]
) -> None:
    rule('memory = "4G", group = "pod"')
    one, other = hold("a", inside=False), hold("a", inside=False)
    assert [one.do("take 2000"), other.do("take 1000")] == [0, 0]
    assert suspended(daemon, one, other) == [False, False]
    assert other.do("take 2000") == 0
    wait_for(lambda: suspended(daemon, one, other) == [True, True])
    assert "its group holds" in task_of(daemon, one.pid).why
    assert one.do("give") == 0
    wait_for(lambda: suspended(daemon, one, other) == [False, False])
    rule('memory = "2G", group = "pod"')
    wait_for(lambda: suspended(daemon, one, other) == [True, True], "a smaller limit")
    rule('memory = "2G"')  # of each tree
    wait_for(lambda: suspended(daemon, one, other) == [False, True])
    rule("weight = 5")
    wait_for(lambda: suspended(daemon, one, other) == [False, False])


def test_a_rules_limit_of_a_tree_is_raised_and_lowered(
    daemon: Daemon, hold: Start, rule: Callable[[str], None]
) -> None:
    rule('memory = "2G"')
    one = hold("a", inside=True)
    wait_for(lambda: task_of(daemon, one.pid).memory_limit_bytes == 2 * GiB)
    assert one.do("take 3000") == OUT_OF_MEMORY
    rule('memory = "4G"')
    wait_for(lambda: one.do("take 3000") == 0)
    rule('memory = "2G"')
    wait_for(lambda: task_of(daemon, one.pid).memory_limit_bytes == 2 * GiB)
    assert one.do("take 10") == OUT_OF_MEMORY
    assert suspended(daemon, one) == [False]  # it keeps what it has
    daemon.client.set(one.pid, {"memory": "6G"})
    rule('memory = "1G"')
    wait_for(lambda: task_of(daemon, one.pid).rule == "a.toml:1")
    assert task_of(daemon, one.pid).memory_limit_bytes == 6 * GiB
    assert one.do("take 2000") == 0


@pytest.mark.parametrize("way", ["set", "manage"])
def test_nobody_joins_a_rules_group_by_its_name(
    daemon: Daemon, hold: Start, rule: Callable[[str], None], commands: Commands, way: str
) -> None:
    rule('memory = "4G", group = "pod"')
    theirs = '[[rule]]\nenvironment = { KIND = "b" }\nset = { memory = "2G", group = "theirs" }\n'
    other = commands.socket.with_name("rules.d") / "b.toml"
    other.touch(0o600)
    other.write_text(theirs)
    victim, enemy = hold("a", inside=False), hold("b", inside=False)
    assert [victim.do("take 1500"), enemy.do("take 1500")] == [0, 0]
    if way == "set":
        daemon.client.set(enemy.pid, {"group": "pod"})
    else:
        assert enemy.do("manage group=pod") == 0
    assert task_of(daemon, enemy.pid).memory_limit_bytes == 2 * GiB  # of its own tree now
    time.sleep(1)
    assert suspended(daemon, victim, enemy) == [False, False]
    assert enemy.do("take 3000") == 0
    wait_for(lambda: suspended(daemon, victim, enemy) == [False, True])
    assert "its group" not in task_of(daemon, enemy.pid).why
    assert enemy.do("give") == 0
    wait_for(lambda: suspended(daemon, victim, enemy) == [False, False])
