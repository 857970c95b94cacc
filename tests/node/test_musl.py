"""Programs that are linked against musl, for which the library is none of the driver's: it is loaded, and makes no
difference.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.fixtures.daemon import Commands, Daemon
from tests.fixtures.node import needs_programs, program

pytestmark = needs_programs("musl-gcc")

PROGRAM = """
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void* reads(void* descriptor) {
    char bytes[8];
    struct pollfd one = {.fd = *(int*)descriptor, .events = POLLIN};
    poll(&one, 1, -1);
    return (void*)(recv(one.fd, bytes, 3, 0) + read(one.fd, bytes, 8));
}

int main(int count, char** words) {
    int pair[2], there = 0, status;
    void* result;
    pthread_t thread;
    if (count > 1) return 7;
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    write(pair[1], "hello", 5);
    ioctl(pair[0], FIONREAD, &there);
    pthread_create(&thread, NULL, reads, &pair[0]);
    pthread_join(thread, &result);
    printf("%d there, %ld read, ", there, (long)result);
    printf("%d %d\\n", dlsym(RTLD_DEFAULT, "puts") != NULL, dlopen("no-such-library.so", RTLD_NOW) == NULL);
    const int refused = ioctl(-1, FIONREAD, &there);
    printf("%d %d\\n", refused, errno);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) execl(words[0], words[0], "child", NULL);
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}
"""
SAID = "5 there, 5 read, 1 1\n-1 9\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("musl")
    (folder / "program.c").write_text(PROGRAM)
    words = [str(program("musl-gcc")), "-o", str(folder / "program"), str(folder / "program.c")]
    subprocess.run(words, check=True)
    return folder / "program"


def test_a_program_of_musl_runs_as_it_does_alone(commands: Commands, daemon: Daemon, built: Path) -> None:
    done = commands.run("run", "--class", "latency", "--", str(built))
    assert (done.returncode, done.stdout, done.stderr) == (7, SAID, "")


def test_and_below_a_program_that_has_a_quota(commands: Commands, daemon: Daemon, built: Path) -> None:
    done = commands.run("run", "--memory", "1G", "--", "sh", "-c", '"$0"; exit $?', str(built))
    assert (done.returncode, done.stdout, done.stderr) == (7, SAID, "")


def test_who_asks_for_a_quota_is_told_that_it_is_kept_from_outside(
    commands: Commands, daemon: Daemon, built: Path
) -> None:
    done = commands.run("run", "--memory", "1G", "--", str(built))
    assert (done.returncode, done.stdout) == (7, SAID)
    assert "is linked against musl: its memory cannot be limited from inside" in done.stderr
