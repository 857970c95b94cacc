"""Tenants that try to hold more GPU memory than their tree may, whatever it takes. `bench/programs/attack.c` is what
they are.

Each must be refused the bytes, or be off the GPU within a second of holding them, and `ps` must say so.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import runlist
from runlist.planes.process.region.format import DEVICE, DEVICES_AT, HEADER, NO_LIMIT, SLOT, SLOTS_AT
from runlist.views.structs import TaskView
from tests.conftest import ON_NVIDIA
from tests.fixtures.compiler import C, compiler
from tests.fixtures.daemon import PATIENCE_S, ROOT, Commands, Daemon, Slices, running, task_of, wait_for
from tests.fixtures.kept import commands, daemon, kept

__all__ = ["commands", "daemon", "kept"]
pytestmark = pytest.mark.skipif(
    ON_NVIDIA,
    reason="a context takes more than 100 MiB there: python -m bench quota_attacks tries these on a GPU",
)

MiB = 1 << 20
LIMIT = "100M"
OUT_OF_MEMORY = 2
ALL = 1 << 64

RUN = (sys.executable, "-m", "runlist.cli", "run")
KERNELS = Path(runlist.__file__).parent / "workloads" / "kernels.autogen.ptx"

DEVICE_LIMIT = DEVICES_AT + DEVICE.offsets["memory_value"]
HEADER_LIMIT = HEADER.offsets["memory_value"]
KEY = DEVICES_AT + DEVICE.offsets["key"]
UNSEEN = DEVICES_AT + DEVICE.offsets["unseen"]
ASKING = SLOT.offsets["use"] + 16


class Attacker:
    """A running attacker, whatever runs it: `words` go before it."""

    def __init__(self, program: Path, words: list[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [*words, program], cwd=ROOT, env={**environment, "KERNELS": str(KERNELS)}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1, start_new_session=True,
        )  # fmt: skip
        self.pid = self.do("pid")

    def do(self, line: str) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], f"no answer to {line!r}"
        answer = self.process.stdout.readline()
        assert answer, f"it ended at {line!r}"
        return int(answer)

    def works(self) -> None:
        wait_for(lambda: self.do("work") == 1, "a kernel of it to end")

    def poke(self, offset: int, value: int) -> None:
        self.do(f"poke {offset} {value - ALL if value >= ALL // 2 else value}")

    def write_limit(self, limit: int) -> None:
        """As the daemon writes one for all GPUs."""
        for at in (HEADER_LIMIT, DEVICE_LIMIT):
            self.poke(at, limit)
            self.poke(at + 8, limit ^ NO_LIMIT)

    def take_beyond(self, mebibytes: int) -> None:
        """Raise the limit and take so much. The daemon may have put the limit back between the two."""
        for _ in range(50):
            self.write_limit(NO_LIMIT)
            if self.do(f"take {mebibytes}") == 0:
                return
        raise AssertionError("it was never quicker than the daemon")

    def slot(self) -> int:
        """Where its own slot is."""
        return next(
            at for at in range(SLOTS_AT, SLOTS_AT + 64 * SLOT.size, SLOT.size)
            if self.do(f"peek {at}") & 0xFFFF_FFFF == self.pid
        )  # fmt: skip

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in {self.pid, self.process.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The attacker, built."""
    built = tmp_path_factory.mktemp("attack") / "attack"
    source = ROOT / "bench" / "programs" / "attack.c"
    done = subprocess.run([*compiler(*C), "-O1", str(source), "-o", str(built), "-ldl"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return built


Attack = Callable[..., Attacker]

KILLED = '(while true; do (echo open; echo take 60; sleep 0.1) | timeout -s KILL 0.15 "$0" > /dev/null; done) &'
"""A shell's: others that take memory again and again, and are killed."""


@pytest.fixture
def attack(commands: Commands, daemon: Daemon, program: Path) -> Iterator[Attack]:
    """Starts an attacker under `runlist run --memory 100M`, with a context; it ends with the test."""
    with contextlib.ExitStack() as stack:

        def start(*words: str, opened: bool = True) -> Attacker:
            command = [*RUN, "--memory", LIMIT, "--", *words]
            attacker = Attacker(program, command, commands.environment)
            stack.callback(attacker.end)
            if opened:
                assert attacker.do("open") == 0
                attacker.works()
            return attacker

        yield start


def is_off(daemon: Daemon, pid: int, within_s: float = PATIENCE_S) -> TaskView:
    """Its task, once it is suspended for its tree's memory, and really stopped."""
    started = time.monotonic()
    wait_for(lambda: any(task.pid == pid and task.suspended for task in daemon.client.ps()), f"{pid} to be suspended")
    assert time.monotonic() - started < within_s
    # One that is found while its tree is over the limit is off at once, and the next look says by how much.
    told = re.compile(r"suspended: its tree holds \S+ MiB with a limit of 100\.0 MiB")
    wait_for(lambda: told.match(task_of(daemon, pid).why), "the reason, with figures")
    return task_of(daemon, pid)


def test_1_a_limit_that_is_raised_in_the_region_gives_nothing(
    attack: Attack, daemon: Daemon, commands: Commands
) -> None:
    attacker = attack()
    attacker.write_limit(NO_LIMIT)
    assert [attacker.do("take 240"), attacker.do("take 240")] == [0, 0]
    assert is_off(daemon, attacker.pid).memory_bytes >= 480 * MiB
    assert "suspended" in commands.ok("ps")
    time.sleep(1.5)  # the limit in the region has long been put back
    assert task_of(daemon, attacker.pid).suspended
    assert attacker.do("take 1") == OUT_OF_MEMORY
    log = daemon.log.read_text()
    assert "a tree holds more than its memory limit; suspended" in log
    attacker.do("give")
    time.sleep(1)
    assert task_of(daemon, attacker.pid).suspended  # not below yet
    attacker.do("give")
    wait_for(lambda: not task_of(daemon, attacker.pid).suspended, "it to run again")
    attacker.works()
    assert "a tree is within its limit again" in daemon.log.read_text()


def test_2_a_limit_that_is_put_back_by_the_tenant_itself(attack: Attack, daemon: Daemon) -> None:
    attacker = attack()
    attacker.write_limit(NO_LIMIT)
    taken = attacker.do("take 400")
    attacker.write_limit(100 * MiB)
    assert taken == 0
    is_off(daemon, attacker.pid)
    assert attacker.do("work") == 0
    assert "a tree holds more than its memory limit; suspended" in daemon.log.read_text()


@pytest.mark.parametrize("offset", [0, 8, 16], ids=["held", "overhead", "asking"])
def test_3_a_number_that_makes_sums_wrap_gives_nothing(attack: Attack, daemon: Daemon, offset: int) -> None:
    attacker = attack()
    slot = attacker.slot()
    attacker.poke(slot + SLOT.offsets["use"] + offset, ALL - 1000 * MiB)
    assert attacker.do("take 240") == OUT_OF_MEMORY


@pytest.mark.parametrize("how", ["share", "keep"])
def test_4_memory_that_is_imported_and_let_go_by_its_exporter(attack: Attack, daemon: Daemon, how: str) -> None:
    attacker = attack()
    codes = [attacker.do(f"{how} 80") for _ in range(4)]
    if codes != [0, OUT_OF_MEMORY, OUT_OF_MEMORY, OUT_OF_MEMORY]:
        is_off(daemon, attacker.pid)
    wait_for(lambda: attacker.do("take 40") == OUT_OF_MEMORY, "what was imported to be charged")


def test_4_memory_that_is_imported_within_the_limit_is_charged_once(attack: Attack, daemon: Daemon) -> None:
    attacker = attack()
    assert attacker.do("share 60") == 0
    assert attacker.do("take 20") == 0
    wait_for(lambda: attacker.do(f"peek {UNSEEN}") >= 60 * MiB, "what was imported to be charged")
    assert attacker.do("take 20") == OUT_OF_MEMORY
    time.sleep(1)
    assert not task_of(daemon, attacker.pid).suspended
    attacker.works()


def test_5_memory_that_is_kept_over_exec(attack: Attack, daemon: Daemon) -> None:
    attacker = attack(opened=False)
    assert attacker.do("reexec 80 5") in (0, OUT_OF_MEMORY)
    task = is_off(daemon, attacker.pid)
    assert task.memory_bytes > 160 * MiB


def test_6_memory_of_a_parent_that_ends(attack: Attack, daemon: Daemon) -> None:
    attacker = attack("sh", "-c", '"$0"; sleep 1000')
    attacker.take_beyond(480)
    parent = attacker.pid
    child = attacker.pid = attacker.do("clone")
    assert child != parent
    task = is_off(daemon, child)
    assert task.memory_bytes >= 480 * MiB
    assert not running(parent)


def test_6_where_the_command_itself_was_the_parent(attack: Attack, daemon: Daemon) -> None:
    attacker = attack()  # who runs it ends with it, and then nobody is its parent
    attacker.take_beyond(480)
    attacker.pid = attacker.do("clone")
    assert is_off(daemon, attacker.pid).memory_bytes >= 480 * MiB


def test_7_a_child_with_a_limit_of_its_own(attack: Attack, daemon: Daemon) -> None:
    attacker = attack("env", "-u", "RUNLIST_REGION", "RUNLIST_MEMORY=100G")
    assert attacker.do("take 400") == 0
    is_off(daemon, attacker.pid)


def test_7_a_child_with_a_limit_of_its_own_in_its_trees_region(attack: Attack, daemon: Daemon) -> None:
    attacker = attack("env", "CUDA_DEVICE_MEMORY_LIMIT_0=100g", "RUNLIST_MEMORY=100G")
    assert attacker.do("take 400") == OUT_OF_MEMORY


def test_7_a_key_that_is_overwritten(attack: Attack, daemon: Daemon) -> None:
    attacker = attack()
    attacker.write_limit(NO_LIMIT)
    attacker.poke(KEY, 12345)
    assert attacker.do("take 400") == 0
    is_off(daemon, attacker.pid)
    assert attacker.do("work") == 0


# -- more of the same ------------------------------------------------------------------------------


def test_whatever_is_written_in_the_region(attack: Attack, daemon: Daemon) -> None:
    """And however the tenant makes it right again: it is off until it holds no more than its limit."""
    attacker = attack()
    slot = attacker.slot()
    identity = attacker.do(f"peek {slot}")
    writings: tuple[tuple[int, int], ...] = (
        (slot, 0),  # it has no slot
        (slot, 1 | 1 << 32),  # it is somebody else
        (slot + SLOT.offsets["enforced"], ALL - 1),
        (slot + SLOT.offsets["use"], 0),  # it holds nothing
        (HEADER.offsets["slots_used"], 0),  # there are no slots
        (UNSEEN, ALL - 1),
    )
    for at, value in writings:
        before = attacker.do(f"peek {at}")
        attacker.take_beyond(400)
        attacker.poke(at, value)
        is_off(daemon, attacker.pid)
        attacker.do(f"poke {at} {before}")
        attacker.do(f"poke {slot} {identity}")
        attacker.write_limit(100 * MiB)
        time.sleep(0.5)
        assert task_of(daemon, attacker.pid).suspended
        assert attacker.do("give") == 0
        wait_for(lambda: not task_of(daemon, attacker.pid).suspended, "it to run again")
    attacker.works()


@pytest.mark.parametrize("how", ["cut 100", "cut 0", "poke 8 99", "poke 0 0"])
def test_a_region_that_is_none_any_more(attack: Attack, daemon: Daemon, how: str) -> None:
    attacker = attack()
    attacker.take_beyond(400)
    assert attacker.do(how) == 0
    assert "not loaded" in is_off(daemon, attacker.pid).enforcement


def test_many_small_ones_without_the_library(attack: Attack, daemon: Daemon) -> None:
    attack(
        "sh", "-c", 'for i in 1 2 3 4 5 6 7 8; do (echo open; echo take 10; sleep 1000) | '
        'env -u LD_PRELOAD "$0" > /dev/null & done; exec "$0"', opened=False,
    )  # fmt: skip
    wait_for(lambda: [task.suspended for task in daemon.client.ps()] == [True] * 8, "all of them to be suspended")


def test_pulses_that_are_too_short_for_one_look(attack: Attack, daemon: Daemon) -> None:
    attacker = attack("env", "-u", "LD_PRELOAD")
    over = threading.Event()

    def pulse() -> None:
        while not over.is_set():
            attacker.do("take 400")
            time.sleep(0.06)
            attacker.do("give")
            time.sleep(0.03)

    pulsing = threading.Thread(target=pulse)
    pulsing.start()
    try:
        task = is_off(daemon, attacker.pid)
    finally:
        over.set()
    assert "again and again" in task.why or "holds" in task.why
    pulsing.join()


def test_a_grandchild_in_a_session_of_its_own(attack: Attack, daemon: Daemon) -> None:
    attacker = attack("sh", "-c", '"$0"; sleep 1000', opened=False)
    attacker.pid = attacker.do("fork")
    assert attacker.do("open") == 0
    attacker.take_beyond(400)
    is_off(daemon, attacker.pid)


def test_the_end_of_who_ran_it(attack: Attack, daemon: Daemon) -> None:
    attacker = attack("sh", "-c", '"$0"; sleep 1000')
    wait_for(daemon.client.ps)
    attacker.process.kill()
    attacker.take_beyond(400)
    is_off(daemon, attacker.pid)


def test_being_attached_once_more(attack: Attack, daemon: Daemon) -> None:
    attacker = attack(opened=False)
    daemon.client.attach(attacker.pid, wait=True)
    assert attacker.do("open") == 0
    attacker.take_beyond(400)
    is_off(daemon, attacker.pid)


def test_enabling_its_own_channels(attack: Attack, daemon: Daemon, slices: Slices) -> None:
    attacker = attack()
    attacker.take_beyond(400)
    is_off(daemon, attacker.pid)
    for _ in range(2):
        assert attacker.do("work") == 0
        for context in slices.contexts(attacker.pid):
            context.resume()
            context.handle.close()
        time.sleep(1)


def test_taking_more_after_the_limit_was_lowered(attack: Attack, daemon: Daemon, commands: Commands) -> None:
    attacker = attack()
    assert attacker.do("take 80") == 0
    wait_for(daemon.client.ps)
    commands.ok("set", str(attacker.pid), "memory=60M")
    time.sleep(1.5)
    assert not task_of(daemon, attacker.pid).suspended  # what it had it keeps
    attacker.works()
    attacker.write_limit(NO_LIMIT)
    assert attacker.do("take 20") == 0
    wait_for(lambda: task_of(daemon, attacker.pid).suspended, "it to be suspended")
    assert attacker.do("give") == 0
    time.sleep(1)
    assert task_of(daemon, attacker.pid).suspended  # that it once had more counts no longer
    assert attacker.do("give") == 0
    wait_for(lambda: not task_of(daemon, attacker.pid).suspended, "it to run again")


# -- and those that mean no harm -------------------------------------------------------------------


def test_a_tree_at_its_limit_is_left_alone(attack: Attack, daemon: Daemon, program: Path) -> None:
    """Its processes take memory from each other, and are killed, as fast as they can."""
    attacker = attack("sh", "-c", f'{KILLED} exec "$0"')
    wait_for(daemon.client.ps)
    ended = time.monotonic() + 4
    while time.monotonic() < ended:
        if attacker.do("take 60") == 0:
            attacker.do("give")
    assert "holds more than its memory limit" not in daemon.log.read_text()
    assert not any(task.suspended for task in daemon.client.ps())
