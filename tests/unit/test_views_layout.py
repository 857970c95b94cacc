"""Tables in narrow terminals: what is kept, what is cut off, what is left out and said to be."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios

import pytest

from runlist.cli.tables import LONG_COLUMNS, REASON_COLUMNS, USUAL_COLUMNS, table
from runlist.views.clients import CLIENT_COLUMNS
from runlist.views.columns import COLUMNS, GPU_COLUMNS, RULE_COLUMNS, chosen, columns_of
from runlist.views.cutting import cells, cut, cut_at_word, padded
from runlist.views.layout import FIRST_TO_GO, SHRINKING, fit, lines
from tests.fixtures.fake_daemon import FakeDaemon, gpu_view, view

BUSY = [
    view(
        pid=4_000_000 + index, task_class="latency", weight=10_000, cap_percent=12.5, timeslice_us=1234,
        command=command, budget_us=5000, period_us=20_000, target_p99_us=5000.0, group="a-group", rule="rules.toml:3",
        segment=2, memory_limit_bytes=8 << 30, enforcement="memory, queries", slices_put_back=3, memory_refusals=4,
        enabled=False, why="cap 12.5 %: waits 12 ms for its next period", container="0123456789abcdef",
        reached_by="lent",
    )
    for index, command in enumerate(["python train.py --epochs 900 --lr 0.1 --data /somewhere", "語学 /学/語.py", "x"])
]  # fmt: skip


@pytest.mark.parametrize("columns", [USUAL_COLUMNS, LONG_COLUMNS, REASON_COLUMNS], ids=["usual", "long", "reasons"])
@pytest.mark.parametrize("width", [36, 60, 80, 81, 120, 200, 1000])
def test_every_width_has_process_state_and_command(columns: list, width: int) -> None:
    made = table(BUSY, columns, width)
    title, *rows = made[:4]
    assert max(map(cells, made)) <= width
    assert {"PID", "STATE", "COMMAND"} <= set(title.split())
    for row, task in zip(rows, BUSY, strict=True):
        assert row.startswith(str(task.pid))
        at = cells(title[: title.index("COMMAND")])
        assert task.command[:8] in row
        assert cells(row[: row.rindex(task.command[:8])]) == at
    wanted = {column.title for column in chosen(columns, BUSY)}
    there = fit(chosen(columns, BUSY), BUSY, width)
    said = " ".join(made[4:]).removeprefix("no room for ").split(", ") if made[4:] else []
    assert {column.title for column in there.columns} | set(said) == wanted


def test_nothing_is_left_out_where_nobody_looks_at_a_terminal() -> None:
    title, *rows = table(BUSY, LONG_COLUMNS)
    assert all(column.title in title for column in chosen(LONG_COLUMNS, BUSY))
    assert rows[0].endswith("/somewhere")
    assert len(rows) == 3


def test_more_room_never_shows_less() -> None:
    counts = [len(fit(chosen(LONG_COLUMNS, BUSY), BUSY, width).columns) for width in range(300)]
    assert counts == sorted(counts)
    assert fit(columns_of("PID", "COMMAND"), [], 80).widths == (3, 7)


def test_gpus_in_a_narrow_terminal() -> None:
    title, row, *_ = table([gpu_view()], GPU_COLUMNS, 80)
    assert {"TASKS", "SHARE"} <= set(title.split())
    assert "25.0 %" in row


def test_every_column_that_may_go_or_shrink_is_one() -> None:
    known = COLUMNS.keys() | {column.title for column in (*GPU_COLUMNS, *RULE_COLUMNS, *CLIENT_COLUMNS)}
    assert set(FIRST_TO_GO) | set(SHRINKING) <= known
    assert known - set(FIRST_TO_GO) == {
        "PID", "STATE", "COMMAND", "TASKS", "LINE", "PROCESSES", "CLIENT", "OPS/S", "QUEUED", "WAITS",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "size", "made"),
    [
        ("abc", 3, "abc"), ("abc", 5, "abc  "), ("abcdef", 4, "abc…"), ("語語", 4, "語語"), ("語語語", 4, "語… "),
        ("e\u0301x", 2, "e\u0301x"), ("abc", 1, "…"), ("abc", 0, ""), ("語", 1, "…"), ("", 2, "  "),
    ],
)  # fmt: skip
def test_texts_in_cells(text: str, size: int, made: str) -> None:
    assert padded(text, size) == made
    assert cells(padded(text, size)) == size
    assert cut(text, size) == made.rstrip(" ")


@pytest.mark.parametrize(
    ("text", "size", "made"),
    [
        ("has the turn", 12, "has the turn"),
        ("kept off by a request", 20, "kept off by a…"),
        ("kept off by a request", 14, "kept off by a…"),
        ("has the turn; is off for each request", 14, "has the turn…"),
        ("it was unforeseeable", 14, "it was unfore…"),  # less than half would be left
        ("p99 5 ms (of 9 ms)", 12, "p99 5 ms…"),
        ("語語 語語 語語", 12, "語語 語語…"),
        ("abc", 0, ""), ("", 3, ""),
    ],
)  # fmt: skip
def test_sentences_are_cut_off_after_a_word(text: str, size: int, made: str) -> None:
    assert cut_at_word(text, size) == made
    assert cells(cut_at_word(text, size)) <= size


WAITS = "waits for the GPU in 98 % of its work: the background is off for each request, switches cost 1 %"


@pytest.mark.parametrize("width", [90, 100, 110, 120, 130])
def test_a_long_reason_ends_in_a_whole_word(width: int) -> None:
    columns = columns_of("PID", "CLASS", "WEIGHT", "SLICE", "STATE", "POLICY", "WHY", "COMMAND")
    made = fit(columns, [view(why=WAITS)], width)
    title, row = lines(made, [view(why=WAITS)])
    at = title.index("WHY")
    shown = row[at : title.index("COMMAND")].strip()
    assert shown.endswith("…")
    assert WAITS.startswith(shown[:-1])
    assert WAITS[len(shown) - 1] in " :,"


def test_numbers_stand_to_the_right() -> None:
    columns = columns_of("SHARE", "PID")
    title, row = lines(fit(columns, [view(share_1s=0.01)]), [view(share_1s=0.01)])
    assert (title, row) == ("SHARE  PID", "1.0 %  42")


def test_ps_in_a_terminal_of_eighty_columns(fake: FakeDaemon) -> None:
    fake.tasks = BUSY
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    words = [sys.executable, "-m", "runlist.cli", "ps", "--long"]
    subprocess.run(words, env=environment, stdout=follower, check=True, timeout=60)
    os.close(follower)
    text = os.read(leader, 1 << 16).decode().splitlines()
    os.close(leader)
    assert {"STATE", "COMMAND"} <= set(text[0].split())
    assert "python train.py" in text[1]
    assert text[4].startswith("no room for ")


def test_watch_in_json_is_a_line_a_look(fake: FakeDaemon) -> None:
    words = [sys.executable, "-m", "runlist.cli", "ps", "--watch", "0.1", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.kill()
    assert [look[0]["pid"] for look in looks] == [42, 42, 42]
