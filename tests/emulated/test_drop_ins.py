"""Drop-ins: files of rules that appear, change and vanish while the daemon and the processes run."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runlist.views.structs import TaskView
from tests.fixtures.daemon import Commands, Daemon, Slices, Worker, task_of, wait_for

Start = Callable[..., Worker]
StartDaemon = Callable[..., Daemon]


class DropIns:
    """Writes drop-ins as programs do: under a hidden name first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str) -> None:
        hidden = self.folder / f".{name}.new"
        hidden.write_text(text)
        hidden.chmod(0o600)
        hidden.rename(self.folder / f"{name}.toml")

    def remove(self, name: str) -> None:
        (self.folder / f"{name}.toml").unlink()


@pytest.fixture
def drop_ins(daemon: Daemon, commands: Commands) -> DropIns:
    """The folder of a daemon that was started without rules."""
    return DropIns(commands.socket.with_name("rules.d"))


def named(worker: Start, commands: Commands, kind: str, **options: Any) -> Worker:
    """A worker whose environment says what kind it is."""
    return worker(environment={**commands.environment, "KIND": kind}, **options)


def for_kind(kind: str, settings: str, labels: str = "") -> str:
    text = f'[[rule]]\nenvironment = {{ KIND = "{kind}" }}\nset = {{ {settings} }}\n'
    return text + (f"labels = {{ {labels} }}\n" if labels else "")


def test_a_daemon_without_rules_takes_those_that_appear(
    commands: Commands, daemon: Daemon, drop_ins: DropIns, worker: Start
) -> None:
    there = named(worker, commands, "web")
    assert daemon.client.ps() == []
    drop_ins.write("a", for_kind("web", 'class = "batch", weight = 50', 'pod = "web-0", namespace = "shop"'))
    wait_for(daemon.client.ps, "the one that was there before")
    task = task_of(daemon, there.pid)
    assert (task.task_class, task.weight, task.rule) == ("batch", 50, "a.toml:1")
    assert task.labels == {"pod": "web-0", "namespace": "shop"}
    later = named(worker, commands, "web")
    wait_for(lambda: len(daemon.client.ps()) == 2, "the one that came later")
    assert task_of(daemon, later.pid).labels == task.labels
    (shown, _) = commands.json("ps")
    assert shown["labels"] == task.labels
    assert "pod=web-0 namespace=shop" in commands.ok("ps", "--long")
    assert all(tenant.quit() for tenant in (there, later))


def test_what_changes_is_in_force_for_running_processes(
    commands: Commands, daemon: Daemon, drop_ins: DropIns, worker: Start
) -> None:
    tenant = named(worker, commands, "web")

    def task() -> TaskView:
        return task_of(daemon, tenant.pid)

    everything = 'class = "batch", weight = 50, cap = 40, burst = "5ms", group = "all", timeslice = "3ms"'
    drop_ins.write("a", for_kind("web", everything + ', interleave = "high"', 'pod = "web-0"'))
    wait_for(daemon.client.ps)
    assert (task().weight, task().cap_percent, task().group) == (50, 40, "all")
    drop_ins.write("a", for_kind("web", 'class = "latency", p99 = "5ms", weight = 70', 'pod = "web-1"'))
    wait_for(lambda: task().task_class == "latency")
    assert (task().weight, task().cap_percent, task().target_p99_us) == (70, None, 5000)
    assert (task().timeslice_set_us, task().controls, task().labels) == (None, {}, {"pod": "web-1"})
    assert task().group == f"job {tenant.pid}"
    daemon.client.set(tenant.pid, {"weight": 90, "cap": 30})  # its user's word, key by key
    drop_ins.write("a", for_kind("web", 'deadline = "5ms/50ms", weight = 10, cap = 80'))
    wait_for(lambda: task().task_class == "deadline")
    assert (task().weight, task().cap_percent, task().budget_us, task().target_p99_us) == (90, 30, 5000, None)
    drop_ins.write("0", for_kind("web", 'class = "batch"'))  # comes before the other
    wait_for(lambda: (task().rule, task().task_class) == ("0.toml:1", "batch"))
    drop_ins.remove("0")
    wait_for(lambda: (task().rule, task().task_class) == ("a.toml:1", "deadline"))
    drop_ins.remove("a")
    wait_for(lambda: (task().rule, task().task_class) == ("", "normal"), "its user set something: it stays managed")
    assert (task().weight, task().cap_percent) == (90, 30)
    assert tenant.quit()


def test_one_that_no_rule_matches_any_more_is_put_back(
    commands: Commands, daemon: Daemon, drop_ins: DropIns, worker: Start, slices: Slices
) -> None:
    mine, other, attached = (named(worker, commands, kind) for kind in ("web", "other", "web"))
    found = slices.of(mine.pid)
    daemon.client.attach(attached.pid, "batch")
    drop_ins.write("a", for_kind("web", 'class = "latency", timeslice = "3ms"'))
    drop_ins.write("b", for_kind("other", 'class = "batch"'))
    wait_for(lambda: len(daemon.client.ps()) == 3)
    assert slices.of(mine.pid) != found
    wait_for(lambda: task_of(daemon, attached.pid).rule == "a.toml:1")
    assert task_of(daemon, attached.pid).task_class == "batch"
    drop_ins.remove("a")
    wait_for(lambda: {task.pid for task in daemon.client.ps()} == {other.pid, attached.pid})
    assert slices.of(mine.pid) == found
    assert task_of(daemon, attached.pid).rule == ""
    drop_ins.write("a", for_kind("web", "weight = 7"))
    wait_for(lambda: len(daemon.client.ps()) == 3, "it is taken again")
    daemon.client.detach(mine.pid)
    drop_ins.write("a", for_kind("web", "weight = 8"))
    wait_for(lambda: task_of(daemon, attached.pid).weight == 8)
    assert len(daemon.client.ps()) == 2  # its user had it put back, and that is the last word
    assert all(tenant.quit() for tenant in (mine, other, attached))


def test_the_next_daemon_reads_what_is_there(commands: Commands, start_daemon: StartDaemon, worker: Start) -> None:
    first = start_daemon()
    drop_ins = DropIns(commands.socket.with_name("rules.d"))
    drop_ins.write("a", for_kind("web", "weight = 50", 'pod = "web-0"'))
    tenant = named(worker, commands, "web")
    wait_for(first.client.ps)
    first.kill()
    second = start_daemon()
    wait_for(second.client.ps)
    task = task_of(second, tenant.pid)
    assert (task.weight, task.rule, task.labels) == (50, "a.toml:1", {"pod": "web-0"})
    assert tenant.quit()


def test_a_deadline_that_has_no_room_is_not_in_force_and_that_is_said(
    commands: Commands, daemon: Daemon, drop_ins: DropIns, worker: Start
) -> None:
    one, other = named(worker, commands, "one"), named(worker, commands, "other")
    drop_ins.write("a", for_kind("one", 'deadline = "30ms/50ms"'))
    drop_ins.write("b", for_kind("other", 'deadline = "10ms/50ms"'))
    wait_for(lambda: len(daemon.client.ps()) == 2)
    drop_ins.write("b", for_kind("other", 'deadline = "40ms/50ms"'))
    wait_for(lambda: daemon.client.status().troubles)
    (trouble,) = daemon.client.status().troubles
    assert f"b.toml:1: not in force for process {other.pid}: " in trouble
    assert task_of(daemon, other.pid).budget_us == 10_000
    drop_ins.write("a", for_kind("one", 'deadline = "10ms/50ms"'))
    wait_for(lambda: task_of(daemon, one.pid).budget_us == 10_000)
    drop_ins.write("b", for_kind("other", 'deadline = "40ms/50ms"') + "# again")
    wait_for(lambda: task_of(daemon, other.pid).budget_us == 40_000)
    assert daemon.client.status().troubles == []
    assert one.quit()
    assert other.quit()


def test_the_main_file_is_read_again_by_command_and_by_signal(
    commands: Commands, start_daemon: StartDaemon, worker: Start, tmp_path: Path
) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(for_kind("web", "weight = 50"))
    daemon = start_daemon("--rules", str(path))
    tenant = named(worker, commands, "web")
    wait_for(daemon.client.ps)

    def weight() -> int:
        return task_of(daemon, tenant.pid).weight

    path.write_text(for_kind("web", "weight = 60"))
    assert weight() == 50
    assert commands.ok("rules", "reload") == "1 rule in force\n"
    assert weight() == 60
    path.write_text(for_kind("web", "weight = 0"))
    line = commands.fails(2, "rules", "reload")
    assert line.startswith(f"{path}:3: set = {{ weight = 0 }}: weight=0: a weight is 1 to 10000")
    assert weight() == 60
    assert daemon.client.status().troubles == [line]
    assert commands.json("rules", "list")["files"] == [{"file": str(path), "rules": 1, "trouble": line}]
    os.kill(daemon.pid, signal.SIGHUP)
    wait_for(lambda: "the rules stay as they were" in daemon.log.read_text())
    assert weight() == 60
    path.write_text(for_kind("web", "weight = 70"))
    os.kill(daemon.pid, signal.SIGHUP)
    wait_for(lambda: weight() == 70)
    assert daemon.client.status().troubles == []
    path.write_text("")
    commands.ok("rules", "reload")
    wait_for(lambda: not daemon.client.ps())
    path.unlink()
    assert "cannot be read" in commands.fails(2, "rules", "reload")
    assert tenant.quit()


def test_the_rules_in_force_are_listed(
    commands: Commands, start_daemon: StartDaemon, worker: Start, tmp_path: Path
) -> None:
    path = tmp_path / "rules.toml"
    bound = '[[bound]]\nlabels = { namespace = "shop" }\nweight = 200\ncap = 50\n'
    path.write_text(bound + for_kind("other", 'class = "batch"'))
    daemon = start_daemon("--rules", str(path))
    drop_ins = DropIns(commands.socket.with_name("rules.d"))
    tenants = [named(worker, commands, "web") for _ in range(2)]
    drop_ins.write("a", for_kind("web", "weight = 900, cap = 20", 'pod = "web-0", namespace = "shop"'))
    drop_ins.write("b", "weight = \x1b[2J")
    wait_for(lambda: len(daemon.client.ps()) == 2 and len(daemon.client.status().troubles) == 1)
    shown = commands.json("rules", "list")
    assert [(rule["rule"], rule["processes"]) for rule in shown["rules"]] == [("a.toml:1", 2), ("rules.toml:5", 0)]
    first = shown["rules"][0]
    assert (first["file"], first["asks"]) == (str(drop_ins.folder / "a.toml"), {"environment": "KIND=web"})
    assert (first["sets"], first["labels"]["pod"]) == ({"weight": "900", "cap": "20"}, "web-0")
    wrong = {file["file"]: file["trouble"] for file in shown["files"] if file["trouble"]}
    assert list(wrong) == [str(drop_ins.folder / "b.toml")]
    assert "\x1b" not in wrong[str(drop_ins.folder / "b.toml")]
    note = "a.toml:1: weight = 900 is beyond rules.toml:1: it is 200"
    assert shown["notes"] == [note]
    assert note not in daemon.client.status().troubles, "it is what bounds are for"
    assert {(task.weight, task.cap_percent) for task in daemon.client.ps()} == {(200, 20)}
    done = commands.run("rules", "list")
    assert done.stdout.splitlines()[0].split() == ["LINE", "PROCESSES", "ASKS", "SETS", "LABELS"]
    assert "runlist: trouble: " in done.stderr
    assert f"runlist: note: {note}" in done.stderr
    path.write_text(bound.replace("200", "100").replace("50", "10") + "class = ['batch']\n")
    commands.ok("rules", "reload")
    got = [(task.weight, task.cap_percent, task.task_class) for task in daemon.client.ps()]
    assert got == [(100, 10, "batch")] * 2
    assert all(tenant.quit() for tenant in tenants)


def test_a_file_of_rules_is_checked_without_a_daemon(commands: Commands, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(for_kind("web", "weight = 60"))
    assert commands.ok("rules", "check", str(path)) == f"{path}: 1 rule, in order\n"
    path.write_text("[[bound]]\nweight = 5\n")
    assert commands.ok("rules", "check", str(path)) == f"{path}: 0 rules, 1 bound, in order\n"
    assert "a drop-in has rules alone" in commands.fails(2, "rules", "check", "--drop-in", str(path))
    path.write_text("[[rule]]\nset.weight = 5\n[[rule]]\nuser = 1\n[[rule]]\nuser = 2\n")
    (note,) = commands.json("rules", "check", str(path))["notes"]
    assert note == f"{path.name}:1: this matches every process, and 2 rules behind it none: put it last"
    path.write_text("[[rule]]\nuser = 1\n[[rule]]\nset.weight = 5\n")
    assert commands.json("rules", "check", str(path))["notes"] == []
    path.write_text("[[rule]]\ncomm = ['a', 'python3*']\nset.weight = 5\n[[rule]]\ncomm = 'b'\n")
    (note,) = commands.json("rules", "check", str(path))["notes"]
    assert note.startswith(f"{path.name}:1: comm is no pattern: python3* is a program of that very name")
    path.write_text(
        "".join(f"[[rule]]\ncontainer = {text}\n" for text in (f"'{'3f2a' * 16}'", "['3f', '*']", "'3f2a'"))
    )
    (note,) = commands.json("rules", "check", str(path))["notes"]
    assert note == f"{path.name}:5: no container has the id 3f2a: write all 64 digits, or a pattern such as 3f2a*"
    path.write_text("[[bound]]\n")
    assert f"{path}:1: " in commands.fails(2, "rules", "check", str(path), "--json")


def test_a_thousand_drop_ins_that_come_and_go_leave_nothing(
    commands: Commands, daemon: Daemon, drop_ins: DropIns, worker: Start
) -> None:
    tenant = named(worker, commands, "web")
    drop_ins.write("mine", for_kind("web", "weight = 50"))
    wait_for(daemon.client.ps)

    def round_trip(first: int) -> None:
        for number in range(first, first + 250):
            drop_ins.write(
                f"{number}", f'[[rule]]\ncontainer = "{number:064x}"\nset.weight = 5\nlabels = {{ a = "b" }}\n'
            )
        wait_for(lambda: len(daemon.client.rules().rules) == 251)
        for number in range(first, first + 250):
            drop_ins.remove(f"{number}")
        wait_for(lambda: len(daemon.client.rules().rules) == 1)

    def held() -> tuple[int, int]:
        status = Path(f"/proc/{daemon.pid}/status").read_text()
        return len(os.listdir(f"/proc/{daemon.pid}/fd")), int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]

    round_trip(0)
    descriptors, kib = held()
    for turn in range(1, 4):
        round_trip(turn * 1000)
    wait_for(lambda: held()[0] <= descriptors)  # at each look somebody may be connected
    after = held()
    assert after[1] - kib < 4096
    assert task_of(daemon, tenant.pid).weight == 50
    assert tenant.quit()
