"""Programs that are unlike others, and must not notice: sanitized ones, those with variables of the driver's names,
those whose first thread leaves, and those that may write no file.
"""

from __future__ import annotations

import resource
import shutil
import sys

import pytest

from tests.conftest import ON_NVIDIA
from tests.native.guests import Guests, compile_c
from tests.native.test_operations import page

THREADS = """
#include <pthread.h>
#include <stdio.h>
static int shared;
static void* adds(void* nothing) { return __atomic_add_fetch(&shared, 1, __ATOMIC_RELAXED), nothing; }
int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, adds, NULL);
    pthread_join(thread, NULL);
    printf("%d\\n", shared);
}
"""
MANY_COPIES = """
import ctypes
libc = ctypes.CDLL(None)
libc.dlmopen.restype = libc.dlsym.restype = ctypes.c_void_p
for _ in range(6):
    handle = libc.dlmopen(ctypes.c_long(-1), b"libcuda.so.1", 2)
    init = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint)(libc.dlsym(ctypes.c_void_p(handle), b"cuInit"))
    print(init(0))
"""
USES = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).use_variables())"


@pytest.mark.parametrize("sanitizer", ["address", "thread", "undefined"])
def test_a_sanitized_program_runs(guests: Guests, sanitizer: str) -> None:
    """A sanitizer looks up functions before its own works."""
    source, built = guests.new_path().with_suffix(".c"), guests.new_path()
    source.write_text(THREADS)
    done = compile_c([str(source), "-pthread", f"-fsanitize={sanitizer}", "-o", str(built)])
    if done.code != 0 or guests.run(str(built), env=guests.environment()).code != 0:
        pytest.skip("this compiler has no such sanitizer, or it does not run here")
    assert guests.lines(str(built), env=guests.environment(guests.region())) == ["1"]


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_valgrind_has_nothing_to_say(guests: Guests) -> None:
    """It knows system calls better than the kernel, and tells of each that is made in no good form."""
    guests.same(str(shutil.which("valgrind")), "-q", "--error-exitcode=77", "/bin/true", code=0)


def test_variables_of_the_drivers_names_stay_their_librarys(guests: Guests) -> None:
    library = guests.path("variables.so")
    guests.same(sys.executable, "-c", USES, library, code=0)


def test_copies_for_which_there_is_no_room_work(guests: Guests) -> None:
    """Each in a namespace of its own; memory of the last is not charged."""
    if guests.run(sys.executable, "-c", MANY_COPIES, env=guests.environment()).lines != ["0"] * 6:
        pytest.skip("this driver cannot be loaded so often")
    done = guests.run(sys.executable, "-c", MANY_COPIES, env=guests.environment(guests.region()))
    assert done.lines == ["0"] * 6
    assert done.err.splitlines() == ["runlist: too many copies of the driver's libraries: the last go without limits"]


def test_nothing_is_there_before_the_driver_is(guests: Guests) -> None:
    assert guests.same("absent").lines == ["0 0"]


# -- as clients that share SMs ------------------------------------------------------------------------


@pytest.mark.skipif(ON_NVIDIA, reason="a real driver has threads of its own")
def test_a_client_whose_first_thread_leaves_ends(guests: Guests) -> None:
    path = guests.new_path()
    path.touch(0o600)
    done = guests.run("leaves", env=page(guests, path, 1), timeout=60)
    assert (done.code, done.err) == (0, "")


def test_a_client_that_may_write_no_file_runs(guests: Guests) -> None:
    path = guests.new_path()
    path.touch(0o600)

    def write_nothing() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = guests.run("leaves", env=page(guests, path, 1), timeout=60, preexec_fn=write_nothing)
    assert done.code == 0
    assert "cannot be made; going on without it" in done.err


def test_programs_that_a_client_starts_say_nothing(guests: Guests) -> None:
    """They have its settings, and its place is taken."""
    path = guests.new_path()
    path.touch(0o600)
    with guests.started("operations", "page", "first", env=page(guests, path, 0)) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "busy\n"
        done = guests.run("leaves", env=page(guests, path, 0), timeout=60)
        assert (done.code, done.err) == (0, "")
        done = guests.run("setsid", "--wait", guests.path("leaves"), env=page(guests, path, 0), timeout=60)
        assert "has that client already" in done.err
