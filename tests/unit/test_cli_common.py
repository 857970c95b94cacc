"""What the commands share: parsing, tables, errors."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer.main

from runlist import __version__
from runlist.cli import application, main
from runlist.cli.common import key_values, number, painted, print_json, report_error, whole
from runlist.cli.tables import LONG_COLUMNS, USUAL_COLUMNS, show, table
from runlist.errors import LONGEST, NoTargetError, UsageError
from runlist.planes.registry import controls
from runlist.views.columns import columns_of
from runlist.views.structs import TaskView
from tests.fixtures.fake_daemon import view


def test_key_values() -> None:
    assert key_values(["a=b", "c=d=e"]) == {"a": "b", "c": "d=e"}
    assert key_values([]) == {}


@pytest.mark.parametrize("word", ["a", "=b", "a=", "=", ""])
def test_anything_but_key_values_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="write key=value"):
        key_values([word])


def test_an_error_is_one_line_whatever_it_quotes() -> None:
    assert str(UsageError("no policy '\x1b[2J\n\u202e\udcff µ'")) == "no policy '?[2J??? µ'"
    long = str(UsageError(f"no policy {'a' * 100_000}: take fair"))
    assert long.startswith("no policy aaa")
    assert long.endswith("aaa: take fair")
    assert len(long) == LONGEST


def test_the_table_leaves_out_what_is_usual(capsys: pytest.CaptureFixture[str]) -> None:
    show([view()], [], False)
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["PID", "GPU", "CLASS", "SLICE", "SHARE", "STATE", "SOURCE", "GROUPS", "COMMAND"]
    assert row == "42   4e3db026  batch   1 µs  25.0 %  enabled  switch log       4  train.py --big"


@pytest.mark.parametrize(
    ("values", "title", "text"),
    [
        ({"weight": 300}, "WEIGHT", "300"),
        ({"cap_percent": 30.0}, "CAP", "30 %"),
        ({"budget_us": 5000, "period_us": 20_000}, "DEADLINE", "5 ms/20 ms"),
        ({"slices_put_back": 2}, "FIXED", "2"),
        ({"controls": {"interleave": "high"}}, "INTERLEAVE", "high"),
        ({"timeslice_set_us": 300, "timeslice_us": 300}, "SLICE", "300 µs (set)"),
        ({"timeslice_set_us": 300, "timeslice_us": 2048}, "SLICE", "2.048 ms (300 µs set)"),
        ({"timeslice_set_us": 300, "timeslice_us": 2048, "enabled": False}, "SLICE", "300 µs (set)"),
    ],
)
def test_a_column_is_shown_for_all_when_one_task_has_something(
    values: dict[str, object], title: str, text: str
) -> None:
    header, first, second = table([view(**values), view(pid=43)], columns_of("PID", title, "COMMAND"))
    assert header.split() == ["PID", title, "COMMAND"]
    assert text in first
    assert text not in second


def test_the_long_table_says_why() -> None:
    task = view(
        group="job", rule="rules.toml:3", why="alone", target_p99_us=5000.0, p99_us=4100.0, segment=2,
        memory_bytes=None, memory_limit_bytes=8 << 30, memory_overhead_bytes=2 << 20, enforcement="memory, queries",
        cap_by="driver", reached_by="lent",
    )  # fmt: skip
    header, row = table([task], LONG_COLUMNS)
    for title, text in {
        "GROUP": "job", "RULE": "rules.toml:3", "WHY": "alone", "P99": "4.1 ms of 5 ms", "SEGMENT": "2", "MEMORY": "-",
        "POLICY": "priority", "MINUTE": "50.0 %", "USER": "root", "QUOTA": "0.0/8.0G", "OVERHEAD": "2.0 MiB",
        "ENFORCED": "memory, queries", "CAP BY": "driver", "REACHED BY": "lent",
    }.items():  # fmt: skip
        assert title in header
        assert text in row


def test_a_usual_line_is_about_as_wide_as_a_terminal() -> None:
    busy = view(
        pid=4_000_000, task_class="latency", weight=10_000, cap_percent=12.5, timeslice_us=1234, slices_put_back=3,
        enabled=False, why="cap 12.5 %: waits 12 ms for its next period", command="c" * 12,
    )  # fmt: skip
    assert max(len(line) for line in table([busy], USUAL_COLUMNS)) <= 125


def test_lines_are_cut_off_where_the_terminal_ends() -> None:
    header, row = table([view(command="x" * 200)], columns_of("PID", "COMMAND"), 20)
    assert header == "PID  COMMAND"
    assert len(row) == 20
    assert row.endswith("x…")


def test_text_of_a_process_cannot_move_the_cursor() -> None:
    (_, row) = table([view(command="a\x1b[2J\nb", why="\x9b")], columns_of("COMMAND", "WHY"))
    assert row.split() == ["a?[2J?b", "?"]


def test_rows_are_sorted_and_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    show([view(pid=100000), view(pid=7)], [], False)
    header, first, second = capsys.readouterr().out.splitlines()
    assert (first.split()[0], second.split()[0]) == ("7", "100000")
    assert first.index("train") == second.index("train") == header.index("COMMAND")
    assert [row.index("4  train") for row in (first, second)] == [
        header.index("S  COMMAND")
    ] * 2  # numbers, to the right


def test_nothing_is_said_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    show([], [], False)
    assert capsys.readouterr().out == "no tasks\n"
    show([], ["one thing"], True)
    captured = capsys.readouterr()
    assert (json.loads(captured.out), captured.err) == ([], "runlist: one thing\n")


def test_json_is_one_document_with_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    show([view()], [], True)
    (task,) = json.loads(capsys.readouterr().out)
    assert task == {name: getattr(view(), name) for name in TaskView.__struct_fields__}
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
    "demo", "top",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "Usage" in out
    assert command in out


def test_help_is_as_wide_as_the_terminal_and_not_as_its_source() -> None:
    group: Any = typer.main.get_command(application())
    for command in ("release", "ps", "trace", "doctor"):
        paragraphs = group.commands[command].help.split("\n\n")
        assert len(paragraphs) > 1, command
        assert not [one for one in paragraphs if "\n" in one], command


@pytest.mark.parametrize("width", ["", "0", "x", "9" * 30])
def test_a_width_that_is_none_leaves_the_help_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    for name in ("COLUMNS", "TERMINAL_WIDTH"):
        monkeypatch.setenv(name, width)
    for words in (["--help"], ["ps", "-h"], ["rules"]):
        with pytest.raises(SystemExit):
            main(words)
        captured = capsys.readouterr()
        assert "Usage" in captured.out + captured.err
    assert os.environ["COLUMNS"] == width  # for what `run` starts


def test_help_shows_every_word_that_was_written_and_no_names_of_functions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in brackets is markup to what draws it."""
    monkeypatch.setenv("COLUMNS", "200")
    commands = list(leaves(typer.main.get_command(application()), ()))
    assert len(commands) > 30
    for words, command in commands:
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        shown = "".join(letter for letter in capsys.readouterr().out if letter not in "│ \n")
        for param in command.params:
            assert "".join((getattr(param, "help", None) or "").split()) in shown, (words, param.name)
        assert "<parse>" not in shown, words


def leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield words, command
    for name, child in (children or {}).items():
        yield from leaves(child, (*words, name))


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("run", "policy", "emulator", "top")])
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
        ["ps", "--watch", "0"], ["ps", "x"], ["top", "0"], ["top", "1", "2"], ["run", "--cap"], ["daemon", "--rules"],
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
        ["doctor", "--device", "x"], ["ps", "5"],
    ],
)  # fmt: skip
def test_a_wrong_word_is_usage_in_one_line(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("runlist: ")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["profile", "show", "--gpu"], "runlist profile show"),
        (["policy", "map", "set", "night", "--refuse"], "runlist policy map set"),
        (["run", "--class"], "runlist run"),
        (["ps", "profile", "--device"], "runlist ps"),
    ],
)
def test_an_option_without_its_word_points_at_the_help_of_its_command(
    capsys: pytest.CaptureFixture[str], words: list[str], command: str
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert f"(see `{command} --help`)" in capsys.readouterr().err


def test_a_device_that_can_be_no_module_is_usage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("../x", ".", "a..b", "a.b/c"):
        monkeypatch.setenv("RUNLIST_DEVICE", name)
        assert [control.name for control in controls()] == ["interleave"]  # which columns and options are made of
        with pytest.raises(SystemExit) as caught:
            main(["ps"])
        assert caught.value.code == 2
        assert f"no device {name!r}: take nvidia or emulated" in capsys.readouterr().err


def test_emulated_without_a_gpu_is_usage(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNLIST_EMULATED_GPU", raising=False)
    with pytest.raises(SystemExit) as caught:
        main(["ps", "--device", "emulated"])
    assert caught.value.code == 2
    assert "runlist emulator" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["-h", "--help"])
@pytest.mark.parametrize("command", [(), ("attach",), ("policy",), ("policy", "use"), ("run",)])
def test_help_has_a_short_name_everywhere(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...], word: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command, word])
    assert caught.value.code == 0
    assert "--help" in capsys.readouterr().out


@pytest.mark.parametrize("command", [(), ("policy",), ("policy", "map"), ("profile",)])
def test_without_words_there_is_the_help_once(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command])
    written = capsys.readouterr()
    assert caught.value.code == 2
    assert (written.out + written.err).count("Usage:") == 1
    assert written.err.strip() or not written.err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert (caught.value.code, capsys.readouterr().out) == (0, f"runlist {__version__}\n")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("runlist re", {"release", "resume"}),
        ("runlist attach 1 --cl", {"--class"}),
        ("runlist attach 1 --class ", {"deadline", "latency", "normal", "batch"}),
        ("runlist attach 1 --class b", {"batch"}),
        ("runlist run --policy f", {"fair"}),
        ("runlist set 1 we", {"weight="}),
        ("runlist set 1 class=l", {"class=latency"}),
        ("runlist ps --device e", {"emulated"}),
        ("runlist simulate --trace f", {"four-batch"}),
    ],
)
def test_a_shell_completes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, typed: str, words: set[str]
) -> None:
    monkeypatch.setenv("_RUNLIST_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" ")) - 1))
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 0
    assert set(capsys.readouterr().out.split()) == words


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o default -F"), ("zsh", "#compdef runlist"), ("fish", "complete --command")]
)
def test_each_shell_has_its_script(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shell: str, word: str
) -> None:
    monkeypatch.setenv("_RUNLIST_COMPLETE", f"source_{shell}")
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 0
    assert word in capsys.readouterr().out


class Terminal(io.StringIO):
    """Something that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({"TERM": "xterm-256color"}, True), ({"TERM": "dumb"}, False), ({}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "xterm", "NO_COLOR": ""}, True),
    ],
)  # fmt: skip
def test_colours_are_for_terminals_that_show_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], coloured: bool
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert painted("ok", "green", Terminal()) == ("\x1b[32mok\x1b[0m" if coloured else "ok")
    assert painted("ok", "green", io.StringIO()) == "ok"
    assert painted("ok", "", Terminal()) == "ok"


def test_too_little_memory_is_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("runlist.cli.application", full)
    with pytest.raises(SystemExit) as caught:
        main(["simulate"])
    assert caught.value.code == 1
    assert capsys.readouterr().err.startswith("runlist: there is not enough memory for this: ")


def test_nobody_has_to_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):  # closed before we began
        monkeypatch.setattr(sys, name, None)
    with pytest.raises(SystemExit) as end:
        main(["simulate", "--list-traces"])
    assert end.value.code == 0


def test_top_needs_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["top"])
    assert caught.value.code == 5
    assert "ps --watch" in capsys.readouterr().err


SLOW = ("textual", "pynvml", "asyncio", "rich", "tomllib", "runlist.daemon", "runlist.client", "runlist.sim")


def test_a_command_waits_only_for_what_it_needs() -> None:
    script = f"import sys, runlist.cli; sys.exit(' '.join(set({SLOW}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("parse", [whole(1), number(0, 1)])
def test_a_number_that_is_none_is_shown_short(parse: Callable[[str], object]) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        parse("9" * 5000 + "x")
    assert len(str(caught.value)) < 150
