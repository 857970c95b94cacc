"""`runlist policy map set|unset`: entries of the policy map that come and go while everything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runlist.cli.policy_map import Entry, wanted
from runlist.client import Client
from runlist.errors import ExitCode, RunlistError
from runlist.wire import RulesInForce
from tests.fixtures.daemon import (
    NOBODY,
    As,
    Commands,
    Daemon,
    Refused,
    Slices,
    Worker,
    group_of_nobody,
    needs_root,
    task_of,
    wait_for,
)

Start = Callable[..., Worker]

HIS = ("--user", "0", "--comm", "python")
"""Whoever starts workers here."""


@pytest.fixture
def folder(daemon: Daemon, commands: Commands) -> Path:
    """The drop-ins of a daemon that was started without rules."""
    return commands.socket.with_name("rules.d")


@needs_root
def test_an_entry_is_in_force_when_the_command_ends(commands: Commands, daemon: Daemon, folder: Path) -> None:
    done = commands.run("policy", "map", "set", "one", "class=batch", "weight=50", *HIS, "--refuse", "slices")
    assert (done.returncode, done.stdout) == (0, "map-one.toml:2: in force\n")
    assert done.stderr.startswith("runlist: nothing is refused now: nobody: ")
    (entry,) = daemon.client.policy_map().entries
    assert (entry.rule, entry.user, entry.comm) == ("map-one.toml:2", 0, "python")
    assert (entry.sets, entry.refuses) == ({"class": "batch", "weight": "50"}, {"slices": "own"})
    told = commands.json(
        "policy", "map", "set", "one", "--cgroup", "/a", "--refuse", "groups=8", "--refuse", "gpus=0,1"
    )
    (rule,) = told["entries"]
    assert (rule["cgroup"], rule["sets"], rule["waits"]) == ("/a", {}, True)
    assert rule["refuses"] == {"groups": "beyond 8", "gpus": "all but 0, 1"}
    assert told["enforced"].startswith("nobody: ")
    (entry,) = daemon.client.policy_map().entries
    assert (entry.cgroup, entry.waits, entry.refuses) == ("/a", True, rule["refuses"])
    assert "groups=beyond 8" in commands.ok("rules", "list")
    assert commands.json("policy", "map", "unset", "one") == {"removed": "one"}
    assert daemon.client.policy_map().entries == []
    assert list(folder.iterdir()) == []


def test_what_is_not_in_force_is_said(commands: Commands, daemon: Daemon) -> None:
    def says(name: str, *words: str) -> str:
        return commands.ok("policy", "map", "set", name, *words)

    assert says("b", "class=latency", "--user", "7") == "map-b.toml:2: in force\n"
    assert says("c", "class=batch", "--user", "7") == "map-c.toml:2: behind map-b.toml:2\n"
    assert says("d", "class=batch", "--user", "7", "--comm", "x") == "map-d.toml:2: behind map-b.toml:2\n"
    assert says("e", "class=batch", "--user", "7", "--cgroup", "/no") == "map-e.toml:2: behind map-b.toml:2\n"
    assert says("f", "class=batch", "--cgroup", "/no") == "map-f.toml:2: no such cgroup\n"
    assert says("a", "class=batch", "--user", "7", "--comm", "x") == "map-a.toml:2: in force\n"
    assert [entry.behind for entry in daemon.client.policy_map().entries] == [
        "", "", "map-b.toml:2", "map-a.toml:2", "map-b.toml:2", "",
    ]  # fmt: skip
    assert "behind map-b.toml:2" in commands.ok("policy", "map", "show")
    commands.ok("policy", "map", "unset", "b")
    states = {entry.rule: entry.state for entry in daemon.client.policy_map().entries}
    assert states == {
        "map-a.toml:2": "in force", "map-c.toml:2": "in force", "map-d.toml:2": "behind map-a.toml:2",
        "map-e.toml:2": "behind map-c.toml:2", "map-f.toml:2": "no such cgroup",
    }  # fmt: skip


def test_processes_that_run_get_it_and_are_put_back(
    commands: Commands, daemon: Daemon, worker: Start, slices: Slices
) -> None:
    tenant = worker()
    found, user = slices.of(tenant.pid), str(Path("/proc", str(tenant.pid)).stat().st_uid)
    commands.ok("policy", "map", "set", "mine", "class=batch", "timeslice=3ms", "--user", user)
    wait_for(daemon.client.ps, "the one that was there before")
    assert (task_of(daemon, tenant.pid).rule, task_of(daemon, tenant.pid).task_class) == ("map-mine.toml:2", "batch")
    commands.ok("policy", "map", "set", "mine", "class=latency", "--user", user)
    wait_for(lambda: task_of(daemon, tenant.pid).task_class == "latency")
    commands.ok("policy", "map", "unset", "mine")
    wait_for(lambda: not daemon.client.ps(), "nobody names it any more")
    wait_for(lambda: slices.of(tenant.pid) == found)
    assert tenant.quit()


def test_a_folder_that_others_can_write_is_not_written(commands: Commands, daemon: Daemon, folder: Path) -> None:
    daemon.faults = ("the drop-ins are refused",)
    folder.chmod(0o777)
    assert "others can write there" in commands.fails(3, "policy", "map", "set", "one", "class=latency", "--comm", "a")
    folder.chmod(0o700)
    assert list(folder.iterdir()) == []


def nothing() -> RulesInForce:
    """A daemon that follows nothing."""
    return RulesInForce(rules=[], files=[])


def interrupted() -> RulesInForce:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("answer", "error"), [(nothing, RunlistError), (interrupted, KeyboardInterrupt)])
def test_what_does_not_come_into_force_is_taken_back(
    daemon: Daemon,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[], RulesInForce],
    error: type[BaseException],
) -> None:
    with Client.open() as client:
        Entry(client, "one").set(wanted({"comm": "first"}, {"class": "batch"}, []))
        before = (folder / "map-one.toml").read_text()
        monkeypatch.setattr(client, "rules", answer)
        monkeypatch.setattr("runlist.cli.policy_map.PATIENCE_S", 0.05)
        for name, who in (("one", "second"), ("two", "third")):
            with pytest.raises(error):
                Entry(client, name).set(wanted({"comm": who}, {"class": "latency"}, []))
        if answer is interrupted:
            with pytest.raises(error):
                Entry(client, "one").unset()
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("map-one.toml", before)]


def test_an_entry_that_is_not_there_and_one_of_others(commands: Commands, daemon: Daemon, folder: Path) -> None:
    (folder / "web.toml").write_text('[[rule]]\ncomm = "web"\n')
    wait_for(lambda: daemon.client.rules().rules)
    assert "no entry web was set: see `runlist policy map show`" in commands.fails(4, "policy", "map", "unset", "web")
    assert (folder / "web.toml").exists()


@needs_root
def test_it_is_not_for_other_users(commands: Commands, start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("--group", group_of_nobody())

    def change() -> None:
        with Client.open() as client:
            Entry(client, "one").set(wanted({"user": "0"}, {"class": "latency"}, []))

    with pytest.raises(Refused, match="belongs to somebody else") as refused:
        As(NOBODY)(change)
    assert refused.value.exit_code == ExitCode.NO_PERMISSION
    assert daemon.client.rules().rules == []
