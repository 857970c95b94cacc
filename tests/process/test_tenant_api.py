"""Real programs that speak for themselves: to a daemon that manages them, to one that does not, and to none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import runlist
from runlist.daemon.placement.rules import Rules
from tests.fixtures.daemon import NOBODY, As, Commands, Daemon, needs_root, wait_for
from tests.fixtures.ear import Ear

TENANT = """
import sys, runlist
from runlist.workloads.gpu import Gpu
gpu = Gpu(0)
print(flush=True)
for line in sys.stdin:
    word, number = line.split()
    if word == "segment":
        with runlist.segment(priority=int(number)):
            print(flush=True)
            sys.stdin.readline()
    elif word == "report":
        for _ in range(100):
            runlist.report_latency(float(number))
    print(flush=True)
gpu.close()
"""

LIGHT = """
import os, sys, threading, runlist
def work(priority):
    for _ in range(100):
        with runlist.segment(priority):
            runlist.report_latency(0.001)
            runlist.hint(0.001)
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        os._exit(0)
    children.append(child)
work(9)
print(*(os.waitpid(child, 0)[1] for child in children))
"""


class Tenant:
    """A program that does one thing a line."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.read()

    def read(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "\n"

    def do(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        self.read()


def light(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Forks, threads, everything that can be said; how the children ended."""
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", LIGHT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip


@pytest.mark.parametrize("path", ["/nowhere/messages.sock", "/dev/null", "\ufffd" * 200])
def test_without_a_daemon_programs_run_as_they_would(path: str) -> None:
    done = light({"RUNLIST_MESSAGES": path})
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0 0\n", "")


def test_forks_and_threads_each_speak_for_their_process(short_path: Path) -> None:
    with Ear(short_path / "messages.sock") as ear:
        done = light({"RUNLIST_MESSAGES": str(ear.path)})
        assert (done.returncode, done.stdout, done.stderr) == (0, "0 0 0\n", "")
        heard = [ear.heard.get() for _ in range(ear.heard.qsize())]
        assert len({one.pid for one in heard}) == 4
        assert not ear.messages.dropped
        for pid in {one.pid for one in heard}:
            numbers = [one.message.sequence for one in heard if one.pid == pid]
            assert numbers == sorted(numbers)


@needs_root
def test_a_tenant_of_another_user_is_heard_as_that_user(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def speak() -> int:
        runlist.report_latency(1.0)
        return os.getpid()

    runlist.hint(0)  # loaded while it can be
    for mode, heard in ((0o700, False), (0o711, True)):
        short_path.chmod(mode)
        with Ear(short_path / "messages.sock") as ear:
            monkeypatch.setenv("RUNLIST_MESSAGES", str(ear.path))
            pid = As(NOBODY)(speak)
            if heard:
                assert ear.next()[:2] == (pid, NOBODY)
            assert ear.heard.empty()


def test_a_daemon_hears_the_tenants_that_it_manages(
    commands: Commands, start_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    script = tmp_path / "tenant.py"
    script.write_text(TENANT)
    daemon = start_daemon()
    tenant = Tenant([sys.executable, str(script)], commands.environment)
    try:
        tenant.do("segment 5")  # not managed yet: nothing happens
        tenant.do("end")
        daemon.client.attach(tenant.process.pid)
        wait_for(lambda: daemon.client.ps()[0].segment is None)
        tenant.do("segment 5")
        wait_for(lambda: daemon.client.ps()[0].segment == 5)
        tenant.do("end")
        wait_for(lambda: daemon.client.ps()[0].segment is None)
        tenant.do("report 0.002")
        wait_for(lambda: daemon.client.ps()[0].p99_us is not None)
        assert daemon.client.ps()[0].p99_us == pytest.approx(2000)
    finally:
        tenant.process.kill()
        tenant.process.communicate()
    assert "Traceback" not in daemon.log.read_text()


def test_rules_place_what_appears(commands: Commands, start_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    script = tmp_path / "tenant.py"
    script.write_text(TENANT)
    rules = tmp_path / "rules.toml"
    rules.write_text(f"[[rule]]\ncommand = '*{script.name}*'\nset = {{ class = 'batch', weight = 50 }}\n")
    assert Rules.load(rules)
    daemon = start_daemon("--rules", str(rules))
    tenant = Tenant([sys.executable, str(script)], commands.environment)
    try:
        wait_for(daemon.client.ps)
        (task,) = daemon.client.ps()
        assert (task.task_class, task.weight, task.rule) == ("batch", 50, "rules.toml:1")
    finally:
        tenant.process.kill()
        tenant.process.communicate()


def test_bad_rules_stop_the_daemon_with_their_line(commands: Commands, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nset.weight = 0\n")
    done = commands.run("daemon", "--rules", str(rules))
    assert done.returncode == 2
    assert f"{rules}:2: set.weight = 0: weight=0: a weight is 1 to 10000, not 0" in done.stderr


def test_a_flood_of_messages_does_not_keep_the_daemon_from_its_clients(commands: Commands, daemon: Daemon) -> None:
    code = (
        "import itertools, runlist\nfor count in itertools.count():\n    if count == 1000: print(flush=True)\n"
        "    with runlist.segment(1): runlist.report_latency(1)"
    )
    flood = [
        subprocess.Popen([sys.executable, "-c", code], env=commands.environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        for process in flood:
            assert process.stdout is not None
            assert process.stdout.readline() == "\n"
        for _ in range(50):
            daemon.client.status()  # an error if the answer takes longer than a client waits
        assert [process.poll() for process in flood] == [None, None]
    finally:
        for process in flood:
            process.kill()
            process.communicate()
