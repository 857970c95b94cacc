"""Clients of one MPS server under the policies: one task to the GPU, several to everybody else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runlist.model import Share, Task, TaskClass, TaskKey, Usage
from runlist.policies import PolicySpec, load_policy
from runlist.policies.parts.slices import BASE_US, WeightedSlices
from runlist.policies.parts.together import as_one
from runlist.policies.parts.turns import PARKED_US
from tests.unit.test_policies_turns import LATENCY, PARKED, TURN, WAIT, Book, task

SERVER, OTHER = 7, 8


def client(pid: int, task_class: TaskClass = TaskClass.BATCH, server: int = SERVER, **values: object) -> Task:
    return task(pid, task_class, together=server, **values)


def keys(*pids: int) -> list[TaskKey]:
    return [TaskKey(pid, "GPU-0") for pid in pids]


# -- as one ----------------------------------------------------------------------------------------


def test_those_that_run_together_are_one_in_the_place_of_the_first() -> None:
    tasks = [
        task(5),
        client(4, weight=100),
        client(2, TaskClass.NORMAL),
        client(3, weight=300),
        client(9, server=OTHER),
    ]
    ones, found = as_one(tasks)
    assert [one.key for one in ones] == keys(5, 2, 9)
    assert (ones[1].task_class, ones[1].weight) == (TaskClass.NORMAL, 300)
    assert found == dict(zip(keys(5, 4, 2, 3, 9), keys(5, 2, 2, 2, 9), strict=True))
    assert as_one([]) == ([], {})


# -- turns -----------------------------------------------------------------------------------------


def test_a_server_by_itself_needs_no_turns() -> None:
    """On an H200 the clients had turns, and those without work the slice of a task that is alone without any: 1 ms for
    all, so that the foreground waited for 1.5 ms.
    """
    book = Book(client(1), client(2), client(3))
    assert (book.decide(), book.again) == ([TURN] * 3, None)
    for _ in range(50):
        book.use(2, 0.01)
        assert book.decide(0.01) == [TURN] * 3
    assert {book.part.why(key) for key in keys(1, 2, 3)} == {"has the turn"}


def test_a_server_has_its_turn_as_one_and_an_idle_client_changes_nothing() -> None:
    book = Book(client(1), client(2), task(3))
    assert book.decide() == [TURN, TURN, WAIT]
    for _ in range(4):
        book.use(2, 0.01)
        assert book.decide(0.01) == [TURN, TURN, WAIT]
    assert [book.part.why(key) for key in keys(1, 2, 3)] == [*["has the turn"] * 2, "waits for its turn"]
    book.use(2, 0.01)
    assert book.decide(0.01) == [WAIT, WAIT, TURN]


def test_turns_go_by_what_all_clients_had_together() -> None:
    book, had = Book(client(1), client(2), task(3)), {1: 0.0, 3: 0.0}
    for turn in range(40):
        on = [each.key.pid for each, share in zip(book.tasks[1:], book.decide(), strict=True) if share.enabled]
        assert on in ([1, 2], [3])
        for pid in on:
            book.use(pid, 0.05 / len(on))
        book.now += 0.05
        had[on[0]] += turn >= 4
    assert had == {1: 18, 3: 18}


def test_a_server_is_without_work_when_all_its_clients_are() -> None:
    book = Book(client(1), client(2), task(3))
    book.decide()
    for _ in range(20):
        shares = book.decide(0.01)
        book.use(3, 0.01 if shares[2].enabled else 0.0)
    assert shares == [PARKED, PARKED, TURN]
    assert book.part.why(keys(2)[0]) == "idle, starts by itself"
    book.use(2, 0.05)
    assert book.decide(0.1)[:2] != [PARKED, PARKED]


def test_what_a_client_had_before_it_came_to_the_server_counts_for_nobody() -> None:
    book = Book(client(1), task(2), task(3))
    for _ in range(6):
        book.take_a_turn()
    book.use(2, 100.0)
    book.decide()
    book.tasks[2] = replace(book.tasks[2], together=SERVER)
    had = [book.take_a_turn() for _ in range(20)]
    assert 9 <= had.count(3) <= 11


@pytest.mark.parametrize("gone", [1, 2])
def test_the_others_go_on_when_a_client_ends(gone: int) -> None:
    book = Book(client(1), client(2), client(3), task(4))
    for _ in range(9):
        book.take_a_turn()
    book.tasks = [each for each in book.tasks if each.key.pid != gone]
    had = {"server": 0, "other": 0}
    for _ in range(20):
        had["other" if book.take_a_turn() == 4 else "server"] += 1
    assert had["server"] == had["other"]


def test_while_all_are_kept_off_each_has_the_slice_that_it_will_have() -> None:
    book = Book(client(1), client(2), task(3))
    book.decide()
    assert book.part.off(book.tasks[1:], book.tasks, book.now, book.now + 1) == dict.fromkeys(
        keys(1, 2, 3), Share(1, enabled=False, until=book.now + 1)
    )


# -- slices ----------------------------------------------------------------------------------------


def test_a_server_competes_with_others_as_one() -> None:
    tasks = [client(1), client(2), client(3), task(4)]
    given_us, _ = WeightedSlices().slices(tasks, tasks, 0.0)
    assert given_us == dict.fromkeys(keys(1, 2, 3, 4), BASE_US)


def test_its_share_is_what_all_clients_had() -> None:
    part, tasks = WeightedSlices(), [client(1), client(2), task(3)]
    for step in range(40):
        given_us, _ = part.slices(tasks, tasks, step * 0.1)
        for index, held_s in enumerate((0.025, 0.025, 0.05)):
            usage = tasks[index].usage
            tasks[index] = replace(tasks[index], usage=Usage(usage.held_s + held_s, usage.turns + 2 * (index != 0)))
    assert given_us == dict.fromkeys(keys(1, 2, 3), pytest.approx(BASE_US, rel=0.06))


# -- policies --------------------------------------------------------------------------------------


def test_a_server_of_latency_tasks_is_alone_in_the_foreground() -> None:
    policy = load_policy(PolicySpec("priority"))
    clients = [client(1, LATENCY), client(2, LATENCY)]
    alone = policy.decide(clients, 0.0).shares
    beside = policy.decide([*clients, client(3, server=OTHER), client(4, server=OTHER)], 0.0).shares
    assert alone == dict.fromkeys(keys(1, 2), Share(1_000_000))
    assert beside == alone | dict.fromkeys(keys(3, 4), TURN)
    two = policy.decide([*clients, task(5, LATENCY)], 0.0).shares
    assert len({share.timeslice_us for share in two.values()}) == 1
    assert two[keys(1)[0]].timeslice_us < PARKED_US * 10


def test_gpreempt_takes_the_clients_of_one_server_as_its_background() -> None:
    policy = load_policy(PolicySpec("gpreempt"))
    assert policy.admit(client(2), [client(1), client(2), task(3, LATENCY)]) is None
    assert "takes one background task" in (policy.admit(client(2, server=OTHER), [client(1)]) or "")
