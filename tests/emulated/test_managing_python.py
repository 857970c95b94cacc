"""`runlist.manage` in Python: functions of all kinds, threads, forks, bad values, and no daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import runlist
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import ROOT, Commands, Daemon, wait_for
from tests.fixtures.kept import commands, daemon, kept
from tests.fixtures.notebooks import code_of

__all__ = ["commands", "daemon", "kept"]


def script(commands: Commands, text: str) -> str:
    """What a script prints, on both streams, that goes through its end."""
    python = [sys.executable, "-W", "ignore::DeprecationWarning"]  # os.fork beside the threads of NVIDIA's driver
    done = subprocess.run(
        [*python, "-c", text], env=commands.environment, cwd=ROOT, text=True, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


PROGRAM = """
import asyncio, contextlib, os, sys, threading, time, warnings
import runlist
from runlist.errors import RunlistError, UsageError
from runlist.workloads.gpu import Gpu

gpu = Gpu(0)
client = runlist.Client.open()

def mine():
    tasks = [task for task in client.ps() if task.pid == os.getpid()]
    return (tasks[0].task_class, tasks[0].weight) if tasks else None
"""


def test_functions_of_all_kinds_are_managed_while_they_run(commands: Commands, daemon: Daemon) -> None:
    said = script(
        commands,
        PROGRAM
        + """
@runlist.manage(weight=11)
def plain(deep=0):
    "What it says."
    return plain(deep - 1) if deep else mine()

@runlist.manage(weight=12)
async def coroutine():
    await asyncio.sleep(0)
    return mine()

@runlist.manage(weight=13)
def generator():
    yield mine()
    yield mine()
    return 7

@runlist.manage(weight=14)
async def generator_too():
    yield mine()
    yield mine()

async def all_of_it():
    values = [mine(), await coroutine(), mine()]
    async with runlist.manage(weight=15):
        values.append(mine())
    async for value in generator_too():
        values.append(value)
    return values + [mine()]

assert (plain(2), mine(), plain.__doc__) == (("normal", 11), None, "What it says.")
assert asyncio.run(all_of_it()) == [None, *[("normal", w) for w in (12,)], None,
                                    ("normal", 15), ("normal", 14), ("normal", 14), None]
values = generator()
assert mine() is None                     # not before its first value
assert next(values) == ("normal", 13) == mine()
values.close()
assert mine() is None
assert list(generator()) == [("normal", 13)] * 2

try:
    with runlist.manage(task_class="batch"):
        assert mine() == ("batch", 100)
        raise KeyError("ours")
except KeyError as error:
    assert error.args == ("ours",)
assert mine() is None
print("done")
""",
    )
    assert said == "done\n"


def test_an_async_generator_hears_what_is_sent_and_thrown(commands: Commands, daemon: Daemon) -> None:
    said = script(
        commands,
        PROGRAM
        + """
from contextlib import asynccontextmanager

@runlist.manage(weight=14)
async def adds():
    total = 0
    while True:
        try:
            total += yield total
        except ArithmeticError as error:
            total = -error.args[0]

@asynccontextmanager
@runlist.manage(weight=15)
async def transaction(done):
    try:
        yield mine()
    except KeyError:
        done.append("rolled back")
        raise
    else:
        done.append("committed")

async def all_of_it():
    values = adds()
    assert await anext(values) == 0
    assert await values.asend(4) == 4
    assert await values.asend(5) == 9
    assert await values.athrow(ArithmeticError(7)) == -7
    assert mine() == ("normal", 14)
    try:
        await values.athrow(KeyError("ours"))
    except KeyError:
        pass
    assert mine() is None
    done = []
    async with transaction(done) as inside:
        assert inside == ("normal", 15)
    try:
        async with transaction(done):
            raise KeyError("ours")
    except KeyError:
        pass
    assert mine() is None
    return done

assert asyncio.run(all_of_it()) == ["committed", "rolled back"]
print("done")
""",
    )
    assert said == "done\n"


def test_an_entry_that_is_interrupted_or_cancelled_leaves_nothing_in_force(commands: Commands, daemon: Daemon) -> None:
    said = script(
        commands,
        PROGRAM
        + """
from runlist import managing

def interrupted(step):
    def then_interrupted(*args):
        step(*args)
        managing._manage = step
        raise KeyboardInterrupt
    return then_interrupted

send = managing._manage
for outer in (False, True):
    with runlist.manage(weight=30) if outer else contextlib.nullcontext():
        managing._manage = interrupted(send)
        try:
            with runlist.manage(weight=31):
                raise AssertionError
        except KeyboardInterrupt:
            pass
        assert mine() == (("normal", 30) if outer else None)

managed = runlist.manage(weight=32)
with runlist.manage(weight=33):
    managed.__enter__()
    managing._manage = interrupted(send)
    try:
        managed.__exit__(None, None, None)
    except KeyboardInterrupt:
        pass
    assert mine() == ("normal", 33)
assert mine() is None

begun, go_on = threading.Event(), threading.Event()

def slow(*args):
    begun.set()
    go_on.wait()
    send(*args)

async def enter():
    async with runlist.manage(weight=34):
        raise AssertionError

async def cancelled():
    managing._manage = slow
    task = asyncio.create_task(enter())
    await asyncio.to_thread(begun.wait)
    managing._manage = send
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    go_on.set()

asyncio.run(cancelled())                  # waits for its threads
assert mine() is None
with runlist.manage(weight=35):
    assert mine() == ("normal", 35)
assert mine() is None
print("done")
""",
    )
    assert said == "done\n"


def test_a_class_is_no_function() -> None:
    with pytest.raises(TypeError, match="decorates functions, not <class"):
        runlist.manage(weight=5)(Path)


def test_threads_are_one_process(commands: Commands, daemon: Daemon) -> None:
    said = script(
        commands,
        PROGRAM
        + """
first, second = threading.Event(), threading.Event()

def other():
    with runlist.manage(weight=20):
        first.set()
        second.wait()

thread = threading.Thread(target=other)
thread.start()
first.wait()
with runlist.manage(task_class="batch"):
    assert mine() == ("batch", 20)
    second.set()
    thread.join()
    assert mine() == ("batch", 100)       # the first one in was the first one out
assert mine() is None

many = [threading.Thread(target=runlist.manage(weight=n)(lambda: time.sleep(0.01))) for n in range(1, 17)]
for thread in many: thread.start()
for thread in many: thread.join()
assert mine() is None
print("done")
""",
    )
    assert said == "done\n"


def test_a_child_of_fork_ends_nothing_of_its_parents(commands: Commands, daemon: Daemon) -> None:
    said = script(
        commands,
        PROGRAM
        + """
managed = runlist.manage(weight=20)
managed.__enter__()
if (child := os.fork()) == 0:
    managed.__exit__(None, None, None)
    with runlist.manage(weight=30):       # its own affair
        pass
    os._exit(0)
os.waitpid(child, 0)
assert mine() == ("normal", 20), mine()
managed.__exit__(None, None, None)
assert mine() is None
print("done")
""",
    )
    assert said == "done\n"


def test_bad_values_are_refused_before_anything_is_sent(commands: Commands) -> None:
    said = script(
        commands,
        """
import runlist
from runlist.errors import UsageError

for wrong, values in [
    (UsageError, dict(task_class="urgent")),
    (UsageError, dict(weight=0)),
    (UsageError, dict(cap=300)),
    (UsageError, dict(memory="8Q")),
    (UsageError, dict(memory=1)),
    (UsageError, dict(settings={"nice": "5"})),
    (UsageError, dict(task_class="batch", deadline="1ms/10ms")),
    (UsageError, dict(cap=30, settings={"cap": 40})),
    (UsageError, dict(task_class="batch", settings={"class": "batch"})),
    (UsageError, dict(cap=40, burst="90ms")),
    (TypeError, dict(weight=True)),
    (TypeError, dict(task_class=4)),
    (TypeError, dict(cap=[30])),
]:
    for required in (True, False):
        try:
            runlist.manage(**values, required=required)
        except wrong as error:
            assert "\\n" not in str(error)
        else:
            raise AssertionError(values)
try:
    runlist.manage(weight=5)(7)
except TypeError as error:
    print(error)
""",
    )
    assert said == "runlist.manage decorates functions, not 7\n"
    assert not commands.socket.exists()  # no daemon was asked, or started


@pytest.mark.skipif(ON_NVIDIA, reason="the GPU of this machine cannot be hidden from a daemon")
def test_without_a_gpu_it_is_an_error_or_a_warning(commands: Commands, tmp_path: Path) -> None:
    commands.environment["RUNLIST_EMULATED_GPU"] = str(tmp_path / "none")
    said = script(
        commands,
        """
import warnings
import runlist
from runlist.errors import RunlistError

try:
    with runlist.manage(weight=5):
        raise AssertionError
except RunlistError as error:
    assert "\\n" not in str(error)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    with runlist.manage(weight=5, required=False):
        print("goes on")
print(said[0].category.__name__, len(said))
""",
    )
    assert said == "goes on\nNotManagedWarning 1\n"


def test_a_daemon_is_started_where_none_runs(commands: Commands) -> None:
    said = script(
        commands,
        """
import os
import runlist
from runlist.workloads.gpu import Gpu

gpu = Gpu(0)
with runlist.manage(weight=5):
    with runlist.Client.open() as client:
        print([(task.pid == os.getpid(), task.weight) for task in client.ps()], client.status().private)
""",
    )
    assert said == "[(True, 5)] True\n"


def test_the_notebook_of_the_guide_does_what_it_says(commands: Commands) -> None:
    """Its code, in one process; tests/node/test_notebook.py has Jupyter run it."""
    assert script(commands, "\n\n".join(code_of("manage.ipynb"))) == (
        "class=urgent: take deadline, latency, normal, batch\n"
    )


def test_the_package_is_imported_as_quickly_as_before(commands: Commands) -> None:
    said = script(
        commands,
        """
import sys
import runlist
assert not {"runlist.client", "runlist.managing", "msgspec", "asyncio"} & sys.modules.keys()
assert {"Client", "manage"} <= set(dir(runlist))
from runlist import Client, manage
print(Client.__module__, manage.__module__)
""",
    )
    assert said == "runlist.client runlist.managing\n"


def test_many_uses_leave_nothing_behind(commands: Commands, daemon: Daemon) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{daemon.pid}/fd"))

    def use(times: int) -> None:
        text = """
    with runlist.manage(weight=5), runlist.manage(weight=6):
        pass
assert mine() is None
"""
        assert script(commands, f"{PROGRAM}\nfor _ in range({times}):{text}") == ""
        wait_for(lambda: not daemon.client.ps())

    use(1)  # the daemon opens its log of the GPU at the first task
    before = descriptors()
    use(100)
    wait_for(lambda: descriptors() <= before, "the daemon is as it was")
