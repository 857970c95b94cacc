"""Clients that share a GPU operation by operation: their order and results stay, and what waits does so by the rule."""

from __future__ import annotations

import subprocess

import pytest

from tests.native.guests import Guests

QUEUED = 600
"""CUDA_ERROR_NOT_READY."""
ENOSYS, ENOENT = -38, -2


def environment(guests: Guests, **more: str) -> dict[str, str]:
    """With clients that are threads."""
    return guests.environment(preload=str(guests.library), RUNLIST_OPERATIONS="threads", **more)


def lines(guests: Guests, *words: object, **more: str) -> list[str]:
    return guests.lines("operations", *words, env=environment(guests, **more))


def test_without_the_variable_nothing_is_scheduled(guests: Guests) -> None:
    env = guests.environment(preload=str(guests.library))
    assert guests.lines("operations", "absent", env=env) == [str(ENOSYS)]
    assert lines(guests, "absent") == ["0"]


def test_results_are_the_same(guests: Guests) -> None:
    bare = guests.lines("operations", "same", env=guests.environment(PLAIN="1"))
    assert len(set(bare)) == 3
    assert lines(guests, "same", PLAIN="1") == bare
    assert lines(guests, "same") == bare


def test_an_operation_waits_for_a_busy_client_and_runs_when_it_is_idle(guests: Guests) -> None:
    assert lines(guests, "waits") == [f"queued 0 {QUEUED} {QUEUED}", "ran 2 2 0 1", "word 5", "first 1 1"]


def test_the_rule_says_what_runs_beside(guests: Guests) -> None:
    """Complementary; alike; too many SMs; complementary the other way round; nothing known."""
    assert lines(guests, "rule") == ["1", "0", "0", "1", "0"]


def test_copies_and_fills_go_at_once(guests: Guests) -> None:
    assert lines(guests, "copies") == ["copied 9"]


def test_nobody_waits_for_ever(guests: Guests) -> None:
    done = guests.run("operations", "bound", env=environment(guests, RUNLIST_OPERATIONS_BOUND_MS="100"))
    assert (done.code, done.lines) == (0, ["opened 1", "opened 2", "word 7"])
    (said,) = done.err.splitlines()
    assert said.startswith("runlist: an operation waited for too long")


@pytest.mark.parametrize(("level", "says"), [("1", False), ("2", True), ("4", True)])
def test_it_says_as_much_as_earlier_schedulers_were_asked_to(guests: Guests, level: str, says: bool) -> None:
    env = environment(guests, RUNLIST_OPERATIONS_BOUND_MS="100", ORION_LOG_LEVEL=level)
    done = guests.run("operations", "bound", env=env)
    assert (done.code, bool(done.err)) == (0, says)


def test_a_thread_ends_with_work_queued(guests: Guests) -> None:
    assert lines(guests, "leaves") == [f"queued {QUEUED}", "word 8"]


def test_client_0_waits_for_no_rule(guests: Guests) -> None:
    assert lines(guests, "inverts") == ["opened 0", "word 4"]


def test_a_process_ends_with_work_queued(guests: Guests) -> None:
    assert lines(guests, "ends") == ["ends"]


def test_a_child_of_fork_has_no_clients(guests: Guests) -> None:
    assert lines(guests, "forks") == ["child 0", "word 4"]


def test_what_is_queued_is_there_until_it_ran(guests: Guests) -> None:
    assert lines(guests, "takes") == guests.lines("operations", "takes", env=guests.environment(PLAIN="1"))


def test_the_log_names_what_was_launched(guests: Guests) -> None:
    assert lines(guests, "log") == ["0 0 fill_u32 1", "1 0 fill_u32 1", "1 3  1", "1 4  1"]


def test_a_context_that_others_hold_is_given_back(guests: Guests) -> None:
    """It waits for nobody, what runs is still seen to be done, and the next context is used afresh."""
    assert lines(guests, "gives_back") == [f"running {QUEUED}", "wait_flag_u32 1", "word 9", "word 10"]


def page(guests: Guests, path: object, client: int) -> dict[str, str]:
    """A process that is a client of a page."""
    return guests.environment(
        preload=str(guests.library), RUNLIST_OPERATIONS=str(path), RUNLIST_OPERATIONS_CLIENT=str(client)
    )


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize("end", ["idle", "killed"])
def test_processes_share_a_page(guests: Guests, end: str) -> None:
    path = guests.new_path()
    path.touch(0o600)
    with guests.started("operations", "page", "first", env=page(guests, path, 0)) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "busy\n"
        with guests.started("operations", "page", "other", env=page(guests, path, 1)) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == f"{QUEUED}\n"
            if end == "idle":
                say(first)
                assert first.stdout.readline() == "idle\n"
            else:
                first.kill()
            assert other.stdout.readline() == "word 5\n"
            assert other.wait(60) == 0


def test_client_0_is_seen_to_be_idle_however_its_rests_fall(guests: Guests) -> None:
    """Its process sleeps while nobody wants to know. One look that came amiss left it asleep for a second."""
    path = guests.new_path()
    path.touch(0o600)
    with guests.started("operations", "bursts", "first", env=page(guests, path, 0)) as first:
        env = {**page(guests, path, 1), "RUNLIST_OPERATIONS_BOUND_MS": "500"}
        other = guests.run("operations", "bursts", "other", env=env)
        first.kill()
    assert (other.code, other.lines, other.err) == (0, ["opened 0"], "")


def test_a_process_may_set_the_rule_before_it_uses_the_gpu(guests: Guests) -> None:
    path = guests.new_path()
    path.touch(0o600)
    assert guests.lines("operations", "asks_first", env=page(guests, path, 1)) == ["0"]


def test_a_shell_is_no_client(guests: Guests) -> None:
    path = guests.new_path()
    path.touch(0o600)
    command = f"{guests.path('operations')} page other; true"
    done = guests.run("sh", "-c", command, env=page(guests, path, 1))
    assert (done.code, done.lines[1:], done.err) == (0, ["word 5"], "")


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("", 0o644, "is not this user's own, and nobody else's"),
        ("x" * 100, 0o600, "is no page"),
        (None, 0o600, "cannot be opened"),
    ],
)
def test_a_file_that_is_no_page(guests: Guests, text: str | None, mode: int, why: str) -> None:
    path = guests.new_path()
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    done = guests.run("operations", "page", "other", env=page(guests, path, 1))
    assert (done.code, done.lines[1:]) == (0, ["word 5"])
    assert done.err == f'runlist: RUNLIST_OPERATIONS="{path}" {why}; going on without it\n'


def test_bytes_of_a_page_that_say_anything(guests: Guests) -> None:
    """A page of its own length: whatever is in it, programs run, if late."""
    path = guests.new_path()
    path.touch(0o600)
    env = {**page(guests, path, 1), "RUNLIST_OPERATIONS_BOUND_MS": "100"}
    assert guests.lines("operations", "page", "other", env=env)[1:] == ["word 5"]
    good = path.read_bytes()
    for filled in (b"\xff", b"\x7f", b"\x01"):
        path.write_bytes(good[:8] + filled * (len(good) - 8))
        done = guests.run("operations", "page", "other", env=env)
        assert (done.code, done.lines[1:]) == (0, ["word 5"])
