"""Processes with thousands of others above them: looking up whose they are costs no more than for any other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.proc import process
from runlist.proc.process import NEAR, ancestors, descendants, is_deep
from tests.conftest import ON_NVIDIA
from tests.fixtures.compiler import C, compiler
from tests.fixtures.daemon import Commands, Daemon, task_of, wait_for
from tests.fixtures.effort import TIMES

DEEP = 250 if TIMES == 1 else 600
"""Processes one below the other; making and ending them takes longer than everything else, by the square of it."""

_CHAIN = """
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    for (int left = atoi(words[1]); left > 0; --left) {
        pid_t child = fork();
        if (child < 0) return 1;
        while (child > 0) pause();
    }
    return execvp(words[2], words + 2);
}
"""

_CONTEXT = """
import ctypes, os, sys, time
from runlist.client import Client
print(os.getpid(), flush=True)
if "attach" in sys.argv:
    with Client.open() as client:
        client.attach(os.getpid(), "latency", wait=True)
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
time.sleep(99)
"""


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that runs another one so many processes below itself."""
    folder = tmp_path_factory.mktemp("chain")
    (folder / "chain.c").write_text(_CHAIN)
    subprocess.run([*compiler(*C), "-O1", folder / "chain.c", "-o", folder / "chain"], check=True)
    return folder / "chain"


@pytest.fixture
def start(chain: Path) -> Iterator[Callable[..., tuple[int, int]]]:
    """Runs words so deep below; the ids of the first and the last process."""
    started: list[subprocess.Popen[str]] = []

    def begin(depth: int, *words: str, **options: object) -> tuple[int, int]:
        made = subprocess.Popen(
            [str(chain), str(depth), *words], stdout=subprocess.PIPE, text=True, start_new_session=True, **options
        )  # type: ignore[call-overload]
        started.append(made)
        assert made.stdout is not None
        return made.pid, int(made.stdout.readline())

    yield begin
    for one in started:
        os.killpg(one.pid, signal.SIGKILL)
        one.communicate()


def test_who_is_deep_costs_no_more(start: Callable[..., tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    top, deepest = start(DEEP, "sh", "-c", "echo $$; sleep 99")
    asked: list[int] = []

    def parent_of(pid: int, ask: Callable[[int], int | None] = process.parent_of) -> int | None:
        asked.append(pid)
        return ask(pid)

    monkeypatch.setattr(process, "parent_of", parent_of)
    monkeypatch.setattr(process, "_parents", {})
    assert len(list(ancestors(deepest))) == NEAR + 1
    assert is_deep(deepest)
    asked.clear()
    descendants(())
    found = list(ancestors(deepest))
    assert len(asked) <= NEAR
    assert found[0] == deepest
    assert found.index(top) == DEEP
    assert found[DEEP:] == list(ancestors(top))
    assert not is_deep(deepest)
    asked.clear()
    assert not is_deep(os.getpid())
    assert next(iter(ancestors(deepest))) == deepest
    assert list(ancestors(1 << 30)) == [1 << 30]
    assert not is_deep(1 << 30)


@pytest.mark.skipif(ON_NVIDIA, reason="its driver's library is the emulated GPU's")
@pytest.mark.parametrize("words", [(), ("attach",)], ids=["found", "attached by itself"])
def test_who_is_deep_is_of_its_tree(
    commands: Commands, daemon: Daemon, chain: Path, start: Callable[..., tuple[int, int]], words: tuple[str, ...]
) -> None:
    run = (sys.executable, "-m", "runlist.cli", "run", "--memory", "100M", "--no-strict", "--")
    program = (sys.executable, "-c", _CONTEXT, *words)
    _, pid = start(0, *run, str(chain), str(DEEP), *program, env=commands.environment)
    wait_for(lambda: any(task.pid == pid for task in daemon.client.ps()), "the task")
    assert task_of(daemon, pid).memory_limit_bytes == 100 << 20
