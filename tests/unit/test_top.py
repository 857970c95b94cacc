"""`runlist top` without a screen: what keys ask for, what is known, what is shown."""

from __future__ import annotations

import pytest

from runlist import wire
from runlist.client import Client
from runlist.errors import ExitCode, NoTargetError
from runlist.top import actions
from runlist.top.clients import client_lines
from runlist.top.feed import Feed, Key, Snapshot
from runlist.top.rows import ORDERS, fitting, gpu_bars, headline, in_order, next_order, reason
from runlist.views.clients import client_rows
from runlist.views.cutting import cells
from tests.fixtures.fake_daemon import FakeDaemon, StartFake, client_view, gpu_view, status, view

KEY = Key.of(view())


# -- actions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"task_class": "latency"}, "class=normal"),
        ({"task_class": "normal"}, "class=batch"),
        ({"task_class": "batch"}, "class=latency"),
        ({"task_class": "batch", "budget_us": 5000}, "class=deadline"),
        ({"task_class": "deadline", "budget_us": 5000}, "class=latency"),
        ({"task_class": "of another version"}, "class=latency"),
    ],
)
def test_classes_go_round(values: dict[str, object], expected: str) -> None:
    assert actions.next_class(view(**values)).words == expected


def test_a_deadline_comes_back_with_its_class(fake: FakeDaemon) -> None:
    camera = view(task_class="deadline", budget_us=5000, period_us=20_000)
    fake.tasks = [camera]
    feed = Feed(Client.open)
    feed.look()
    feed.act(Key.of(camera), actions.next_class)
    assert feed.undo().message == "process 42: deadline=5000us/20000us again"
    assert [request.settings for request in fake.asked(wire.Change)] == [
        {"class": "latency"}, {"deadline": "5000us/20000us"},
    ]  # fmt: skip
    feed.close()


@pytest.mark.parametrize(
    ("weight", "up", "down"),
    [(100, 125, 80), (1, 2, 1), (2, 3, 1), (3, 4, 2), (4, 5, 3), (9000, 10_000, 7200), (10_000, 10_000, 8000)],
)
def test_weights_change_by_a_quarter(weight: int, up: int, down: int) -> None:
    assert actions.heavier(view(weight=weight)).words == f"weight={up}"
    assert actions.lighter(view(weight=weight)).words == f"weight={down}"


# -- feed ------------------------------------------------------------------------------------------


def test_a_look_tells_tasks_and_daemon(fake: FakeDaemon) -> None:
    feed = Feed(Client.open)
    assert feed.look() == Snapshot((view(),), fake.status)
    fake.tasks = []
    assert feed.look() == Snapshot((), fake.status)
    feed.close()


@pytest.mark.parametrize(
    ("action", "request_", "message"),
    [
        (actions.next_class, wire.Change(42, {"class": "latency"}), "process 42: class=latency (u takes it back)"),
        (actions.heavier, wire.Change(42, {"weight": "125"}), "process 42: weight=125 (u takes it back)"),
        (actions.lighter, wire.Change(42, {"weight": "80"}), "process 42: weight=80 (u takes it back)"),
        (actions.suspend_or_resume, wire.Suspend(42), "process 42: suspended (u takes it back)"),
    ],
)
def test_an_action_is_asked_for_and_seen_at_once(
    fake: FakeDaemon, action: actions.Action, request_: wire.Message, message: str
) -> None:
    feed = Feed(Client.open)
    before = feed.look()
    after = feed.act(KEY, action)
    assert fake.requests[-1] == request_
    assert (after.message, after.trouble) == (message, False)
    assert after.tasks == tuple(fake.tasks) != before.tasks
    feed.close()


def test_keys_in_quick_succession_add_up(fake: FakeDaemon) -> None:
    feed = Feed(Client.open)
    feed.look()
    for _ in range(3):
        feed.act(KEY, actions.heavier)
    assert [request.settings["weight"] for request in fake.asked(wire.Change)] == ["125", "156", "195"]
    feed.act(KEY, actions.suspend_or_resume)
    feed.act(KEY, actions.suspend_or_resume)
    assert fake.requests[-2:] == [wire.Suspend(42), wire.Resume(42)]
    feed.close()


def test_a_refusal_is_told_and_everything_else_stays(fake: FakeDaemon) -> None:
    feed = Feed(Client.open)
    before = feed.look()
    fake.answers[wire.Change] = wire.Failure("weights are frozen", ExitCode.NO_PERMISSION)
    after = feed.act(KEY, actions.heavier)
    assert after == Snapshot(before.tasks, before.status, "weights are frozen", trouble=True)
    assert feed.look() == after
    feed.close()


def test_a_task_that_went_meanwhile(fake: FakeDaemon) -> None:
    feed = Feed(Client.open)
    feed.look()
    fake.tasks = []
    assert "process 42 is not managed" in feed.act(KEY, actions.heavier).message
    feed.look()
    assert "not managed any more" in feed.act(KEY, actions.heavier).message
    feed.close()


def test_a_daemon_that_goes_and_comes_back(start_fake: StartFake) -> None:
    feed = Feed(Client.open)
    lost = feed.look()
    assert (lost.tasks, lost.status, lost.trouble) == ((), None, True)
    assert lost.message.startswith("no daemon runs")
    first = start_fake()
    found = feed.look()
    assert (found.status, found.trouble, found.message) == (first.status, False, "connected to a daemon again")
    first.close()
    assert feed.act(KEY, actions.heavier).message.startswith("the daemon ended")
    assert feed.look().trouble
    start_fake()
    assert feed.look().tasks == (view(),)
    feed.close()


@pytest.mark.parametrize(
    ("answer", "what"),
    [(None, "does not answer"), (b"\x02\x00\x00\x00{}", "another version"), (wire.Failure("no right", 3), "no right")],
)
def test_a_daemon_that_answers_badly_is_left(fake: FakeDaemon, answer: object, what: str) -> None:
    feed = Feed(lambda: Client.open(patience_s=0.1))
    fake.answers[wire.ListTasks] = answer  # type: ignore[assignment]
    assert what in feed.look().message
    fake.answers.clear()
    assert feed.look().tasks == (view(),)
    feed.close()


def test_an_action_without_a_daemon() -> None:
    def nobody() -> Client:
        raise NoTargetError("no daemon runs")

    assert Feed(nobody).act(KEY, actions.heavier).trouble


# -- rows ------------------------------------------------------------------------------------------


def test_every_order_sorts_and_they_go_round() -> None:
    tasks = [
        view(pid=1, share_1s=0.1, task_class="batch", weight=1, memory_bytes=None, turns_per_s=9.0, command="b"),
        view(pid=2, share_1s=0.9, task_class="deadline", weight=2, memory_bytes=7, turns_per_s=0.0, command="c"),
        view(pid=3, share_1s=0.5, task_class="unknown", weight=3, memory_bytes=9, turns_per_s=5.0, command="a"),
    ]
    orders = {name: "".join(str(task.pid) for task in in_order(tasks, name)) for name in ORDERS}
    assert orders == {
        "share": "231", "pid": "123", "class": "213", "weight": "321", "memory": "321", "turns": "132",
        "command": "312",
    }  # fmt: skip
    name, seen = "share", []
    for _ in ORDERS:
        seen.append(name)
        name = next_order(name)
    assert name == "share"
    assert set(seen) == set(ORDERS)


def titles(width: int, *tasks: wire.TaskView) -> list[str]:
    return [column.title for column in fitting(tasks, width).columns]


def test_a_wide_screen_has_all_columns() -> None:
    two = (view(), view(pid=43, gpu="GPU-2"))
    assert titles(200, *two) == [
        "PID", "USER", "GPU", "CLASS", "WEIGHT", "CAP", "SLICE", "SHARE", "LAST MINUTE", "MEMORY", "TURNS/S", "STATE",
        "SOURCE", "COMMAND",
    ]  # fmt: skip
    assert "GPU" not in titles(200, view())
    assert titles(200)


def test_a_narrow_screen_does_without_the_least_important_columns() -> None:
    widths = [len(titles(width, view())) for width in range(200)]
    assert widths == sorted(widths)
    assert {"SHARE", "STATE", "COMMAND"} < set(titles(60, view()))
    assert titles(0, view()) == ["PID", "STATE", "COMMAND"]


def test_the_headline() -> None:
    assert headline(Snapshot(), "pid") == "no daemon"
    assert headline(Snapshot((), status()), "pid").startswith("no tasks · policy priority · sorted by pid · daemon 7")
    two = (view(), view(gpu="GPU-2"))
    many = status(policy_options={"quantum_ms": "20"}, waiting=["a", "b"], others_waiting=1)
    assert headline(Snapshot(two, many), "pid").startswith(
        "2 tasks on 2 GPUs · 3 waiting for room · policy priority quantum_ms=20"
    )
    assert headline(Snapshot((view(),), status()), "pid").startswith("1 task on 1 GPU ·")


BY_SLICE = gpu_view(gives_way="slice", gives_way_slice_us=1523, switches_share=0.091)


def test_each_gpu_says_how_the_background_gives_way() -> None:
    plain = gpu_view(gpu="GPU-2")
    for width in range(73, 200):
        first, second = gpu_bars(Snapshot((), status(gpus=[BY_SLICE, plain])), width, 24)
        for word in ("4e3db026", "25.0 %", "3.0/140.0G", "slice 1.5 ms, switches 9 %"):
            assert word in first
        assert "█" in first
        assert "switches" not in second
        assert "3.0/140.0G" in second
        assert max(len(first), len(second)) <= width - 2
    (narrow,) = gpu_bars(Snapshot((), status(gpus=[BY_SLICE])), 64, 24)
    assert "slice 1.5 ms, switches 9 %" in narrow
    assert "█" not in narrow


def test_a_reason_is_two_lines_at_most_and_ends_with_a_word() -> None:
    why = "waits for the GPU in 98 % of its work: the background is off for each request, switches cost 1 %"
    assert reason(view(why=why), 200) == f"process 42: {why}"
    assert " ".join(reason(view(why=why), 80).splitlines()) == f"process 42: {why}"
    for width in range(20, 200):
        rows = reason(view(why=why), width).splitlines()
        assert len(rows) <= 2
        assert all(len(row) <= width - 2 for row in rows)
        text = " ".join(rows)
        assert text == f"process 42: {why}" or f"process 42: {why} ".startswith(text.removesuffix(" …") + " ")
    assert reason(view(), 80) == ""
    assert "\x1b" not in reason(view(why="\x1b[2J"), 80)


# -- clients ---------------------------------------------------------------------------------------

HIGH = client_view(operations_per_s=12_345.6)
LOW = client_view(
    client=1, operations_per_s=432.0, deferred_per_s=100.0, queued=7, wait_us=45.6, sms_share=0.41, beside="complements"
)


def test_clients_of_threads_stand_beside_each_other() -> None:
    both = [view(pid=9, command="serve_and_train.py", clients=[HIGH, LOW])]
    titles, first, other = client_lines(both, 120, 40)
    assert titles.split("  ")[0] == "CLIENT"
    assert first.split()[:7] == ["0", "HP", "9", "12,346", "0", "0", "-"]
    for word in ("at once", "serve_and_train.py"):
        assert word in first
    for word in ("1 BE", "432", "100", "7", "45.6 µs", "41.0 %", "complements"):
        assert word in other


def test_clients_of_processes_come_by_their_number_and_each_once() -> None:
    gpus = ["GPU-1", "GPU-2"]
    tasks = [view(pid=5, gpu=gpu, clients=[LOW]) for gpu in gpus]
    tasks += [view(pid=7, gpu="GPU-1", clients=[HIGH]), view(pid=3, gpu="GPU-1", clients=[HIGH, LOW])]
    rows = [(row.task.gpu, row.task.pid, row.client.client) for row in client_rows(tasks)]
    assert rows == [("GPU-1", 7, 0), ("GPU-1", 5, 1), ("GPU-1", 3, 0), ("GPU-1", 3, 1)]
    assert client_lines([view()], 200, 60) == []


def test_of_a_queue_that_none_left_the_oldest_is_shown() -> None:
    (_, line) = client_lines([view(clients=[client_view(client=1, queued=3, oldest_us=2.5e6)])], 120, 40)
    assert "> 2.5 s" in line


def test_a_screen_has_a_quarter_for_them_at_most() -> None:
    many = [view(pid=pid, clients=[client_view(client=pid % 16, beside="anything")]) for pid in range(1, 40)]
    for height in range(60):
        for width in (20, 40, 80, 200):
            rows = client_lines(many, width, height)
            assert len(rows) <= height // 4
            assert all(cells(row) <= width - 2 for row in rows)
    assert client_lines(many, 80, 24)[-1] == "and 35 clients more"
    assert client_lines(many[:5], 80, 24)[-1].startswith("5 BE")


def test_clients_have_nothing_that_a_terminal_obeys() -> None:
    evil = client_view(client=1, beside="\x1b[2J\x07", operations_per_s=1e9, queued=(1 << 63) - 1)
    text = "\n".join(client_lines([view(command="\x1b[31m", clients=[evil])], 200, 40))
    assert "\x1b" not in text
    assert "\x07" not in text
