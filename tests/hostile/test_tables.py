"""Processes with thousands of threads, each with a table of descriptors of its own: nobody waits for that."""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.daemon.__main__ import CHECK_EVERY_S
from runlist.proc import borrow, descriptors
from runlist.proc.descriptors import FEW
from tests.conftest import ON_NVIDIA
from tests.fixtures.compiler import C, compiler
from tests.fixtures.daemon import Commands, Daemon, Slices, task_of

TABLES = 600

_PROGRAM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_barrier_t here;
static long last;
static char *what;

static void *apart(void *number) {
    if (unshare(CLONE_FILES)) exit(3);
    pthread_barrier_wait(&here);
    if ((long)number != last) {
        pause();
    } else if (*what == '/') {
        printf("%ld %d\\n", (long)gettid(), open(what, O_RDWR));
    } else {
        void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context;
        int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
        int (*retain)(void **, int) = (int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain");
        int begun = init(0);
        printf("%d %d\\n", begun, retain(&context, 0));
    }
    fflush(stdout);
    pause();
    return NULL;
}

int main(int count, char **words) {
    last = atol(words[1]) - 1;
    what = words[2];
    pthread_barrier_init(&here, NULL, last + 1);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    for (long number = 0; number <= last; ++number) {
        pthread_t thread;
        if (pthread_create(&thread, number == last ? NULL : &small, apart, (void *)number)) return 5;
    }
    pause();
}
"""

Start = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program whose last thread of so many opens a file, or makes a context."""
    folder = tmp_path_factory.mktemp("tables")
    folder.chmod(0o755)
    (folder / "tables.c").write_text(_PROGRAM)
    words = [*compiler(*C), "-w", folder / "tables.c", "-o", folder / "tables", "-ldl", "-lpthread"]
    subprocess.run(words, check=True)
    return folder / "tables"


@pytest.fixture
def start(program: Path) -> Iterator[Start]:
    """Runs it; its process id and what it says."""
    started: list[subprocess.Popen[str]] = []

    def begin(threads: int, what: str, **options: object) -> tuple[int, str]:
        made = subprocess.Popen(  # type: ignore[call-overload]
            [str(program), str(threads), what], stdout=subprocess.PIPE, text=True, **options
        )
        started.append(made)
        assert made.stdout is not None
        return made.pid, made.stdout.readline()

    yield begin
    for one in started:
        one.kill()
        one.communicate()


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the kernel was asked to compare."""
    asked: list[int] = []

    def kcmp(*arguments: int, ask: Callable[..., int] = descriptors._kcmp) -> int:
        asked.append(arguments[0])
        return ask(*arguments)

    monkeypatch.setattr(descriptors, "_kcmp", kcmp)
    return asked


def test_a_file_in_the_last_of_many_tables_is_found(start: Start, compared: list[int]) -> None:
    pid, said = start(TABLES, "/dev/zero")
    thread, fd = map(int, said.split())
    found = [number for number, target in descriptors.numbers(pid) if target == "/dev/zero"]
    assert [descriptors.path(pid, number) for number in found] == [f"/proc/{pid}/task/{thread}/fd/{fd}"]
    assert len(compared) <= (TABLES + 1) * math.ceil(math.log2(TABLES + 1))


def test_whether_it_is_still_there_is_asked_where_it_was(start: Start, compared: list[int]) -> None:
    pid, said = start(TABLES, "/dev/zero")
    thread, fd = map(int, said.split())
    number = thread << 32 | fd
    with open(descriptors.path(pid, number), "rb") as other:
        assert not borrow.still_has(pid, number, other.fileno())
        assert len(compared) <= FEW * (math.log2(FEW) + 1) + 2
    compared.clear()
    pidfd = os.pidfd_open(pid)
    copy = descriptors.copy(pidfd, number)
    os.close(pidfd)
    assert borrow.still_has(pid, number, copy)
    assert len(compared) == 1
    os.close(copy)


@pytest.mark.skipif(ON_NVIDIA, reason="its driver's library is the emulated GPU's")
def test_what_it_has_there_is_managed(daemon: Daemon, commands: Commands, start: Start, slices: Slices) -> None:
    pid, said = start(TABLES, "context", env=commands.environment)
    assert said == "0 0\n"
    assert len(daemon.client.attach(pid, "batch")) == 1
    assert slices.compute(pid) == 1
    time.sleep(2 * CHECK_EVERY_S)  # it still has the file, says each check
    assert task_of(daemon, pid).suspended is False
    assert daemon.client.suspend(pid)[0].suspended
