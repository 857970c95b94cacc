"""What the commands share: parsing, tables, errors."""

from __future__ import annotations

import json

import pytest

from runlist import wire
from runlist.cli import main
from runlist.cli.common import key_values, print_json, report_error, show_tasks
from runlist.errors import NoTargetError, UsageError


def view(**values: object) -> wire.TaskView:
    fields: dict[str, object] = {
        "pid": 42, "gpu": "GPU-4e3db026-c5f4", "task_class": "batch", "command": "train.py --big", "user": 1000,
        "timeslice_us": 1, "enabled": True, "suspended": False, "groups": 4, "channels": 20, "corrections": 2,
        "policy": "priority", "discovery_ms": 1.0, "attach_ms": 2.0,
    }  # fmt: skip
    return wire.TaskView(**{**fields, **values})


def test_key_values() -> None:
    assert key_values(["a=b", "c=d=e"]) == {"a": "b", "c": "d=e"}
    assert key_values([]) == {}


@pytest.mark.parametrize("word", ["a", "=b", "a=", "=", ""])
def test_anything_but_key_values_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="write key=value"):
        key_values([word])


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(None, "default"), (1, "1 µs"), (999, "999 µs"), (1500, "1.5 ms"), (20_000, "20 ms"), (1_000_000, "1 s")],
)
def test_the_table_shows_slices_for_people(
    capsys: pytest.CaptureFixture[str], microseconds: int | None, text: str
) -> None:
    show_tasks([view(timeslice_us=microseconds)], [], False)
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["PID", "GPU", "CLASS", "SLICE", "STATE", "POLICY", "GROUPS", "FIXED", "COMMAND"]
    assert row[header.index("SLICE") :].startswith(text)
    assert row[header.index("GPU") :].startswith("4e3db026 ")
    assert row.endswith("train.py --big")


@pytest.mark.parametrize(
    ("values", "state"),
    [({}, "enabled"), ({"enabled": False}, "waiting"), ({"enabled": False, "suspended": True}, "suspended")],
)
def test_states(capsys: pytest.CaptureFixture[str], values: dict[str, bool], state: str) -> None:
    show_tasks([view(**values)], [], False)
    assert f" {state} " in capsys.readouterr().out


def test_rows_are_sorted_and_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    show_tasks([view(pid=100000), view(pid=7)], [], False)
    header, first, second = capsys.readouterr().out.splitlines()
    assert (first.split()[0], second.split()[0]) == ("7", "100000")
    assert first.index("train") == second.index("train") == header.index("COMMAND")


def test_nothing_is_said_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    show_tasks([], [], False)
    assert capsys.readouterr().out == "no tasks\n"
    show_tasks([], ["one thing"], True)
    captured = capsys.readouterr()
    assert (json.loads(captured.out), captured.err) == ([], "runlist: one thing\n")


def test_json_is_one_document_with_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    show_tasks([view()], [], True)
    (task,) = json.loads(capsys.readouterr().out)
    assert task == {name: getattr(view(), name) for name in wire.TaskView.__struct_fields__}
    print_json({"ü": 1})
    assert json.loads(capsys.readouterr().out) == {"ü": 1}


@pytest.mark.parametrize(
    ("words", "as_json"),
    [
        (["ps"], False),
        (["ps", "--json"], True),
        (["run", "--", "program", "--json"], False),
        (["emulator", "--json", "--", "program"], True),
    ],
)
def test_an_error_is_one_line_and_json_where_asked(
    capsys: pytest.CaptureFixture[str], words: list[str], as_json: bool
) -> None:
    assert report_error(NoTargetError("process 7 does not exist"), words) == 4
    captured = capsys.readouterr()
    assert captured.err == "runlist: process 7 does not exist\n"
    if as_json:
        assert json.loads(captured.out) == {"error": "process 7 does not exist", "exit_code": 4}
    else:
        assert captured.out == ""


COMMANDS = [
    "doctor", "run", "attach", "detach", "ps", "set", "suspend", "resume", "release", "policy", "daemon", "emulator",
    "demo",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "Usage" in out
    assert command in out


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("run", "policy", "emulator")])
def test_every_command_that_prints_takes_json(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"], ["attach"], ["attach", "x"], ["attach", "0"], ["attach", "--", "-3"], ["attach", "1.5"],
        ["attach", "1", "2"], ["attach", "1", "--nonsense"], ["set", "1"], ["run"], ["policy", "use"],
        ["demo", "--seconds", "0"], ["demo", "--seconds", "x"], ["emulator", "--gpus", "0"], ["policy", "nonsense"],
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_usage(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    "words",
    [
        ["set", "1", "class"], ["set", "1", "=batch"], ["attach", "1", "--device", "amd"], ["ps", "--device", "cuda"],
        ["doctor", "--device", "x"],
    ],
)  # fmt: skip
def test_a_wrong_word_is_usage_in_one_line(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("runlist: ")


def test_emulated_without_a_gpu_is_usage(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNLIST_EMULATED_GPU", raising=False)
    with pytest.raises(SystemExit) as caught:
        main(["ps", "--device", "emulated"])
    assert caught.value.code == 2
    assert "runlist emulator" in capsys.readouterr().err
