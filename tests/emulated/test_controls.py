"""The driver's own controls, from every way of asking for them to what the driver is sent, and their undoing.

The driver cannot be asked for them, so every process of ours notes what it sends.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from runlist.client import Client
from tests.fixtures.daemon import NOBODY, As, Commands, Daemon, Refused, Worker, group_of_nobody, needs_root, wait_for

Start = Callable[..., Worker]
pytestmark = needs_root  # or the driver refuses

LOW, MEDIUM, HIGH = 0, 1, 2

NOTING = """
import os
import sys

from runlist import interpreter
from runlist.planes.nvidia.rm.client import RmClient

send = RmClient.send


def noting(self, control):
    code, params = send(self, control)
    if control.command == 0xA06C0107:
        with open(os.environ["NOTED"], "a") as file:
            print(f"{self.handle}.{control.object}", control.params[0], code, file=file)
    return code, params


RmClient.send = noting


def command(module, *arguments):
    return [sys.executable, "-m", module, *arguments]


interpreter.command = command  # one that is isolated would not find this file
"""


class Levels:
    """The interleave level of every channel group for which one was ever sent."""

    def __init__(self, commands: Commands, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text(NOTING)
        self._noted = folder / "noted"
        self._noted.touch()
        environment = commands.environment
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment["PYTHONPATH"]])
        environment["NOTED"] = str(self._noted)

    def now(self) -> list[int]:
        lines = [line.split() for line in self._noted.read_text().splitlines()]
        return list({group: int(level) for group, level, code in lines if code == "0"}.values())


@pytest.fixture
def levels(commands: Commands, tmp_path: Path) -> Levels:
    """Before a daemon starts."""
    return Levels(commands, tmp_path)


def controls(daemon: Daemon) -> list[dict[str, str]]:
    return [task.controls for task in daemon.client.ps()]


def test_a_control_is_asked_for_changed_shown_and_undone(
    levels: Levels, commands: Commands, daemon: Daemon, worker: Start
) -> None:
    tenant = worker()
    pid = str(tenant.pid)
    (task,) = commands.json("attach", pid, "--interleave", "high")
    assert (task["controls"], levels.now()) == ({"interleave": "high"}, [HIGH] * 4)
    header, row = commands.ok("ps").splitlines()
    assert row[header.index("INTERLEAVE") :].startswith("high ")
    tenant.do("context")
    wait_for(lambda: levels.now() == [HIGH] * 8, "its second context")
    (task,) = commands.json("set", pid, "interleave=medium")
    assert (task["controls"], levels.now()) == ({"interleave": "medium"}, [MEDIUM] * 8)
    assert "interleave=most" in commands.fails(2, "set", pid, "weight=7", "interleave=most")
    assert levels.now() == [MEDIUM] * 8
    (task,) = commands.json("set", pid, "interleave=low")
    assert (task["controls"], levels.now()) == ({}, [LOW] * 8)
    assert "INTERLEAVE" not in commands.ok("ps")
    commands.ok("attach", pid, "--interleave", "high")
    assert levels.now() == [HIGH] * 8
    commands.ok("detach", pid)
    assert levels.now() == [LOW] * 8
    assert tenant.quit()


def test_it_holds_for_the_new_processes_of_a_tree(levels: Levels, daemon: Daemon, worker: Start) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch", settings={"interleave": "high"})
    children = [tenant.do("spawn")["pid"]]
    wait_for(lambda: controls(daemon) == [{"interleave": "high"}] * 2, "its child")
    assert levels.now() == [HIGH] * 8
    daemon.client.set(tenant.pid, {"interleave": "medium"})
    children.append(tenant.do("spawn")["pid"])
    wait_for(lambda: controls(daemon) == [{"interleave": "medium"}] * 3, "another child")
    daemon.client.detach(tenant.pid)
    assert levels.now() == [LOW] * 12
    for child in children:
        os.kill(child, signal.SIGKILL)


def test_of_a_command_that_is_run(levels: Levels, commands: Commands, daemon: Daemon) -> None:
    process = commands.start("run", "--interleave", "high", "--", "python", "-m", "runlist.workloads.batch", stdin=-1)
    wait_for(lambda: controls(daemon) == [{"interleave": "high"}], "the program")
    assert levels.now() == [HIGH] * 4
    daemon.client.detach(process.pid)
    assert levels.now() == [LOW] * 4


def test_by_a_rule_and_undone_by_the_keeper(
    levels: Levels, start_daemon: Callable[..., Daemon], worker: Start, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\ncommand = "*worker*"\nset.interleave = "high"\n')
    daemon = start_daemon("--rules", str(rules))
    tenant = worker()
    wait_for(lambda: levels.now() == [HIGH] * 4, "the rule")
    assert controls(daemon) == [{"interleave": "high"}]
    daemon.kill()
    wait_for(lambda: levels.now() == [LOW] * 4, "the keeper")
    assert tenant.quit()


def test_users_have_no_use_of_the_daemons_right(
    levels: Levels, start_daemon: Callable[..., Daemon], worker: Start
) -> None:
    daemon = start_daemon("--group", group_of_nobody())
    tenant, other = worker(), worker()
    for one in (tenant, other):
        one.do(f"setuid {NOBODY}")
    pid, asked = tenant.pid, {"interleave": "high"}

    def refused(request: Callable[[Client], object]) -> bool:
        def ask() -> None:
            with Client.open() as client:
                request(client)

        with pytest.raises(Refused, match="only root and the daemon's own user may set interleave") as caught:
            As(NOBODY)(ask)
        return caught.value.exit_code == 3

    assert refused(lambda client: client.attach(pid, "batch", settings=asked))
    assert refused(lambda client: client.launch(os.getpid(), "batch", settings=asked))
    assert daemon.client.ps() == []
    daemon.client.attach(pid, "batch")
    before = daemon.client.ps()[0].weight
    assert refused(lambda client: client.set(pid, {"weight": "7", **asked}))
    assert refused(lambda client: client.attach(pid, None, settings=asked))
    assert (daemon.client.ps()[0].weight, levels.now()) == (before, [])
    daemon.client.set(pid, asked)  # root may
    assert levels.now() == [HIGH] * 4
