"""The daemon is a guest that stays: it loads nothing large that it never uses."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from runlist.arrivals import After, Closed, Listed, Periodic, Poisson
from runlist.protocol import environment_autogen as names

LARGE = ("colorama", "matplotlib", "perfetto", "rich", "ssl", "textual", "typer", "typing_extensions")
COPIED = {
    "policies.interface.Decision", "model.giving_way.GivingWay", "model.limits.Cap", "model.limits.Deadline",
    "model.share.Share", "model.task.Task",
}  # fmt: skip
"""Dataclasses, as anybody's policy may copy them with `dataclasses.replace`. All else is msgspec's: it makes a class in
a thirtieth of the time.
"""


@pytest.mark.parametrize("module", ["runlist.daemon.__main__", "runlist.daemon.undo.keeper"])
def test_nothing_large_is_loaded(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set({LARGE!r}) & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "\n"


@pytest.mark.parametrize(
    "module", ["runlist.daemon.undo.keeper", "runlist.daemon.relay.__main__", "runlist.planes.kernel.loader"]
)
def test_helpers_of_the_daemon_make_no_dataclass(module: str) -> None:
    code = f"""
import sys, {module}
from runlist.planes.registry import PLANES, choose_plane, load_ahead
for name in PLANES:
    load_ahead(choose_plane(name), "keeper")  # of which each makes one
print(*sorted({{"dataclasses", "inspect"}} & set(sys.modules)))
"""
    environment = {**os.environ, names.EMULATED_GPU: "/"}
    assert subprocess.check_output([sys.executable, "-c", code], text=True, env=environment) == "\n"


@pytest.mark.parametrize("module", ["runlist.daemon.__main__", "runlist.cli.run_command", "runlist.cli.ps_command"])
def test_what_starts_often_makes_few_dataclasses(module: str) -> None:
    code = f"""
import sys, {module}
from runlist.planes import registry
for name in registry.PLANES:
    registry.controls()
for each in list(sys.modules.values()):
    for thing in list(vars(each).values()):
        if isinstance(thing, type) and thing.__module__ == each.__name__ and "__dataclass_fields__" in vars(thing):
            print(thing.__module__, thing.__qualname__, sep=".")
"""
    made = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert {name.removeprefix("runlist.") for name in made if name.startswith("runlist.")} <= COPIED


def test_when_requests_come_is_known_without_dataclasses() -> None:
    code = "import sys, runlist.arrivals; print(*sorted({'dataclasses', 'inspect'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "\n"


def test_loads_are_values() -> None:
    assert Periodic(5.0) == Periodic(5.0, None, 0.0) != Periodic(5.0, 0.0)
    assert Closed() == Closed() != Poisson(5.0)
    assert len({After(("a",)), After(("a",)), After(("b",)), Closed()}) == 3
    assert str(Listed((1.0, 2.0))) == "Listed(at_s=(1.0, 2.0))"
    with pytest.raises(AttributeError, match="never changes"):
        Poisson(5.0).rate = 6.0


def test_what_was_left_out_can_be_had_later() -> None:
    code = "import runlist.daemon.lean, rich.console, ssl; print(ssl.OPENSSL_VERSION)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip()


def test_garbage_is_collected_as_usual_once_a_process_has_started() -> None:
    code = """
import gc
usual = gc.get_threshold()
from runlist import lean
assert gc.get_threshold()[0] > usual[0]
lean.started()
print(gc.get_threshold() == usual, gc.get_freeze_count() > 1000)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True True\n"


def test_nothing_is_looked_through_once_more_at_the_end() -> None:
    code = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 1000, len(gc.get_objects()) < 100))  # runs last
from runlist import lean
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True True\n"


def test_the_daemon_keeps_nothing_of_what_a_library_took_for_a_question() -> None:
    code = """
import ctypes, mmap, threading
from runlist.daemon.lean import keep_little
keep_little()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * mmap.PAGESIZE
def ask():
    for _ in range(2):  # glibc learns from the first
        taken = [ctypes.c_void_p(libc.malloc(size)) for size in (3 << 20, 1 << 20)]
        for each, size in zip(taken, (3 << 20, 1 << 20)):
            libc.memset(each, 1, size)
        all_have.wait()
        for each in taken:
            libc.free(each)
    all_have.wait()
    asked.wait()  # threads that wait for questions do not end
all_have, asked, before = threading.Barrier(4), threading.Event(), resident()
threads = [threading.Thread(target=ask) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(3):
    all_have.wait()
print(resident() - before)
asked.set()
"""
    kept = int(subprocess.check_output([sys.executable, "-c", code], text=True))
    assert kept < 2 << 20
