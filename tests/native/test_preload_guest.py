"""A good guest: programs that do what a preloaded library may not be ready for, with and without it."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import needs_root
from tests.native.guests import OUT_OF_MEMORY, GiB, Guests
from tests.native.test_preload_quota import by_hand

NASTY = {
    "answers": 0, "state": 21, "handlers": 0, "destructors": 4, "exit_race": 5, "forks": 0, "heirs": 0, "spawns": 0,
    "becomes": 0, "alone": 0, "closes_library": 0, "closes_before": 0, "closes_after": 0, "small_stack": 0,
    "many_threads": 0, "computes": 0,
}  # fmt: skip
"""The acts of nasty.c and their exit codes."""


@pytest.mark.parametrize("act", NASTY)
def test_nobody_can_tell_the_difference(guests: Guests, act: str) -> None:
    done = guests.same("nasty", act, code=NASTY[act])
    assert done.err == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [(("state", 37), 37), (("quiet",), 0), (("deep",), 0), (("killed",), -15), (("exec",), 0), (("twice",), 0)],
)
def test_nor_in_a_program_without_cuda(guests: Guests, words: tuple[object, ...], code: int) -> None:
    assert guests.same("manners", *words, code=code).err == ""


def test_what_was_ignored_or_blocked_stays_so(guests: Guests) -> None:
    def unusual() -> None:
        import signal

        os.umask(0o27)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGCHLD])

    lines = guests.same("manners", "state", 0, preexec_fn=unusual).lines
    assert "umask 027" in lines
    guests.same("nasty", "state", preexec_fn=unusual)


@pytest.mark.parametrize("act", ["alone", "closes_before", "many_threads"])
def test_the_limit_holds_meanwhile(guests: Guests, act: str) -> None:
    """What these do is refused when there is no room for it: by the code, and never by a crash."""
    done = guests.run("nasty", act, env=guests.environment(guests.region(1 << 20)))
    assert done.code in (0, 9)
    assert str(OUT_OF_MEMORY) in done.out + done.err


def test_standard_streams_that_are_closed(guests: Guests) -> None:
    report = guests.new_path()
    words = f'exec "{guests.path("manners")}" streams "{report}" <&- >&- 2>&-'
    guests.lines("sh", "-c", words, env=guests.environment(guests.region()))
    assert report.read_text() == "0 0 0\n"


def limits(**values: int) -> Callable[[], None]:
    def apply() -> None:
        for name, value in values.items():
            resource.setrlimit(getattr(resource, name), (value, value))

    return apply


NUMBERS = (3, 9, 10, 42, 99, 100, 187, 199, 200, 201, 222, 250, 300, 999)


def test_the_numbers_that_scripts_give_to_descriptors(guests: Guests) -> None:
    """200 is the one by which many hold a lock. bash puts back what it finds open there to be closed on exec: then what
    it starts would lock our file in the stead of the script's."""
    lines = (f'exec {number}>>"$0"; readlink /proc/self/fd/{number}' for number in NUMBERS)
    assert len(guests.same("bash", "-c", "\n".join(lines), guests.new_path()).lines) == len(NUMBERS)


def test_nor_where_there_are_few(guests: Guests) -> None:
    script = 'exec 200>>"$0"; readlink /proc/self/fd/200'
    assert guests.same("bash", "-c", script, guests.new_path(), preexec_fn=limits(RLIMIT_NOFILE=256)).lines


@pytest.mark.parametrize("descriptors", [4, 8, 16, 40])
def test_few_descriptors(guests: Guests, descriptors: int) -> None:
    """Without one for the region the program is not started by a strict launcher, and runs otherwise."""
    few = limits(RLIMIT_NOFILE=descriptors)
    bare = guests.run("manners", "quiet", env=guests.environment(), preexec_fn=few)
    done = guests.run("manners", "quiet", env=guests.environment(guests.region(), RUNLIST_STRICT="0"), preexec_fn=few)
    assert done.code == bare.code
    guests.same("nasty", "alone", preexec_fn=limits(RLIMIT_NOFILE=40))


def test_little_address_space(guests: Guests) -> None:
    guests.same("manners", "state", 0, preexec_fn=limits(RLIMIT_AS=48 << 20))
    guests.same("manners", "quiet", preexec_fn=limits(RLIMIT_AS=16 << 20, RLIMIT_STACK=256 << 10))


SMALL_STACK = 24 << 10
"""Bytes, of which half may be spent before the first line of anything."""


def test_a_small_stack(guests: Guests) -> None:
    """The library takes no more of it when it comes than an empty one does."""
    small = limits(RLIMIT_STACK=SMALL_STACK)
    guests.same("nasty", "alone", preexec_fn=small)
    for path in ("", str(guests.new_path())):
        limited = by_hand(guests, RUNLIST_MEMORY="100M", **({"RUNLIST_REGION": path} if path else {}))
        assert guests.run("manners", "quiet", env=limited, preexec_fn=small).code == 0


def test_a_small_stack_of_a_thread(guests: Guests) -> None:
    assert guests.same("narrow", "libresolv.so.2", 16).out == "opened\n"


def test_no_files_may_grow(guests: Guests) -> None:
    guests.same("nasty", "alone", preexec_fn=limits(RLIMIT_FSIZE=0))


def isolated(*kinds: str, script: str) -> list[str]:
    """Words that run a shell script in namespaces of its own, with the program as its arguments."""
    tool = shutil.which("unshare")
    if tool is None:
        pytest.skip("needs unshare")
    probe = subprocess.run([tool, *kinds, "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(probe.stderr.strip())
    return [tool, *kinds, "sh", "-c", script, "sh"]


@needs_root
@pytest.mark.skipif(ON_NVIDIA, reason="NVIDIA's cuInit needs /proc: error 304")
def test_without_proc(guests: Guests) -> None:
    hide = isolated("-m", script='mount -t tmpfs none /proc && exec env LD_PRELOAD="$GUARD" "$@"')
    region = guests.region(6 * GiB)
    env = guests.environment(region, preload="", GUARD=str(guests.library), LIMIT="0")
    lines = guests.lines(*hide, guests.path("routes"), env=env)
    assert lines[0] == f"linked {6 * GiB}"
    assert guests.lines(*hide, guests.path("racer"), "fill", 6 * GiB, env=env) == [str(OUT_OF_MEMORY)]


@needs_root
def test_in_another_pid_namespace(guests: Guests) -> None:
    """The processes there see each other, and give back what those that ended held."""
    fill = f'LD_PRELOAD="$GUARD" "{guests.path("racer")}" fill'
    sizes = (6 * GiB, 4 * GiB, 4 * GiB, 6 * GiB)
    inside = isolated("-pf", "--mount-proc", script="; ".join(f"{fill} {size}" for size in sizes))
    env = guests.environment(guests.region(6 * GiB), preload="", GUARD=str(guests.library))
    assert guests.lines(*inside, env=env) == [str(OUT_OF_MEMORY), "0", "0", str(OUT_OF_MEMORY)]


@needs_root
def test_a_pid_namespace_that_is_gone_holds_nothing(guests: Guests) -> None:
    """Nobody can see its processes any more; their locks on the region tell."""
    fill = isolated("-pf", "--mount-proc", script=f'LD_PRELOAD="$GUARD" "{guests.path("racer")}" fill {4 * GiB}')
    env = guests.environment(guests.region(6 * GiB), preload="", GUARD=str(guests.library))
    assert [guests.lines(*fill, env=env) for _ in range(2)] == [["0"], ["0"]]


def test_an_interposer_of_everything_before_or_behind_it(guests: Guests) -> None:
    other = guests.path("interposer.so")
    for act in ("answers", "forks", "destructors", "closes_library"):
        bare = guests.run("nasty", act, env=guests.environment(preload=str(other)))
        for preload in (f"{guests.library}:{other}", f"{other}:{guests.library}"):
            assert guests.run("nasty", act, env=guests.environment(guests.region(), preload)) == bare
