"""Careless words to every command: one clear line, the right exit code, nothing taken silently. They are told before
anything else is looked at, so that it is the same on a machine without a GPU.
"""

# ruff: noqa: RUF001 (letters that look like others are the subject)

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer.main

from runlist import client
from runlist.cli import application, main
from tests.fixtures.daemon import NOBODY, As, needs_others

USAGE, NO_PERMISSION, NO_TARGET = 2, 3, 4

BAD_VALUES = {
    "class": ["", " ", "emperor", "batch,latency", "ｂatch", "1", "none", "batch\n"],
    "weight": ["", "0", "-1", "10001", "1.5", "1e3", "٣", "３", "x", "nan", "inf", "0x10", "9" * 400, "50%", "1 0"],
    "cap": ["", "0", "0.5", "101", "1000%", "-30", "٣٠", "nan", "inf", "1e1", "30ms", "30/100", "30ms/5ms", "%"],
    "burst": ["", "5", "-5ms", "٥ms", "nan", "inf", "5 minutes", "2s", "1e3ms"],
    "deadline": ["", "5ms", "5/20", "20ms/5ms", "0ms/20ms", "5ms/20ms/2ms", "٥ms/20ms", "nan/inf", "1us/2us"],
    "p99": ["", "0ms", "5", "-5ms", "٥ms", "2h", "nan", "inf", "86401s"],
    "group": ["", "a b", "a\nb", "x" * 1025, "\x1b[2J", "\u202e"],
    "memory": ["", "8", "1", "64k", "-4G", "4Q", "٨G", "nan", "inf", "1e9", "2000T", "8 8G", "8G/2"],
    "timeslice": ["", "0", "-1", "1.5", "٣", "nan", "inf", "61s", "60000001", "2m", "50%", "0x10"],
    "interleave": ["", "3", "highest", "none", "low,high"],
}  # fmt: skip
SETTINGS = [(key, value) for key, values in BAD_VALUES.items() for value in values]

BAD_PIDS = [
    "",
    " ",
    "0",
    "x",
    "1.5",
    "1e3",
    "٤٢",
    "４２",
    "nan",
    "inf",
    "-inf",
    "0x10",
    "1_000",
    "42 ",
    "self",
    "42;",
    "--",
    "-1",
]
BAD_NUMBERS = ["", " ", "x", "nan", "inf", "-inf", "-1", "٣", "３", "1,5", "0x10", "1e999", "9" * 400, "1 2", "2s"]
NUMBERS = [
    ("ps", "--watch"), ("top",), ("demo", "--seconds"), ("trace", "--out", "x", "--seconds"), ("simulate", "--seconds"),
    ("simulate", "--gpus"), ("simulate", "--compress"), ("simulate", "--skip"), ("emulator", "--gpus"),
]  # fmt: skip

COMBINATIONS = [
    (*command, *words)
    for command in (("run",), ("attach", "1"))
    for words in (
        ("--deadline", "5ms/20ms", "--class", "batch"), ("--class", "latency", "--deadline", "5ms/20ms"),
        ("--class", "deadline", "--deadline", "none"), ("--class", "batch", "--p99", "5ms"),
        ("--cap", "10", "--deadline", "5ms/20ms"), ("--cap", "max", "--burst", "5ms"),
        ("--cap", "5", "--burst", "50ms"), ("--option", "bound=1"), ("--policy", "deadline", "--option", "bound"),
        ("--policy", "deadline", "--option", "bound=2"), ("--policy", "deadline", "--option", "bound=٣"),
        ("--policy", "deadline", "--option", "bound=nan"), ("--policy", "priority", "--option", "x=1"),
        ("--policy", "deadline", "--option", "bound=1", "--option", "bound=0.5"), ("--policy", "emperor"),
        ("--policy", ""), ("--policy", "/nowhere/mine.py"), ("--policy", "/etc.py"), ("--device", "emperor"),
        ("--device", ""), ("--device", "no.such.module"), ("--device", "../x"), ("--emperor",), ("--class",),
    )
] + [
    ("run", "--memory", "8G", "--no-preload", "--", "true"), ("run", "--strict", "--no-strict", "--", "true"),
    ("run", "--class", "deadline", "--", "true"), ("run", "--burst", "5ms", "--", "true"), ("run",), ("run", "--"),
    ("set", "1"), ("set", "1", "class"), ("set", "1", "=batch"), ("set", "1", "class="), ("set", "1", "emperor=1"),
    ("set", "1", "class=batch", "class=batch"), ("set", "1", "class=batch", "deadline=5ms/20ms"),
    ("set", "1", "class=batch", "weight=0"), ("set", "1", "CLASS=batch"), ("set", "1", "--class", "batch"), ("set",),
    ("rules", "check", ""), ("profile", "import", ""), ("profile", "learn", ""),
    ("release",), ("release", "--all", "1"), ("release", "1", "--all"),
    ("ps", "5"), ("ps", "--gpus", "--long"), ("ps", "--watch", "1", "2"), ("detach", "1", "2"), ("suspend",),
    ("daemon", "--status", "--policy", "fair"), ("daemon", "--stop", "--rules", "/etc/passwd"), ("daemon", "extra"),
    ("daemon", "--status", "--option", "a=b"), ("daemon", "--stop", "--group", "root"),
    ("daemon", "--policy", "emperor"), ("daemon", "--json"),
    ("daemon", "--option", "x=1"), ("daemon", "--group", "no such group"), ("daemon", "--group", ""),
    ("daemon", "--rules", "/nowhere"), ("daemon", "--rules", "/etc"), ("daemon", "--rules", ""),
    ("daemon", "--rules", "/etc/passwd"), ("daemon", "--rules", "/dev/null/x"), ("daemon", "--rules", "x" * 5000),
    ("exporter", "--once", "--listen", "127.0.0.1:1"), ("exporter", "--once", "--textfile", "x.prom"),
    ("exporter", "--every", "5"), ("exporter", "--once", "--every", "5"),
    ("exporter", "--textfile", "x.prom", "--password-file", "/etc/passwd"),
    ("exporter", "--once", "--tls-cert", "/etc/passwd", "--tls-key", "/etc/passwd"),
    ("exporter", "--tls-cert", "/etc/passwd"), ("exporter", "--tls-key", "/etc/passwd"),
    ("exporter", "--tls-cert", "/etc/passwd", "--tls-key", "/etc/passwd"),
    ("policy", "use"), ("policy", "use", ""), ("policy", "use", "emperor"),
    ("policy", "use", "fair", "--option", "x=1"),
    ("policy", "use", "."), ("policy", "use", "/nowhere.py"), ("policy", "emperor"), ("policy", "use", "parts"),
    *[("policy", "map", "set", *words) for words in (
        (), ("",), ("a b", "--user", "root"), ("x" * 65, "--user", "root"), ("../x", "--user", "root"), ("x",),
        ("x", "class=batch"), ("x", "class=emperor", "--user", "root"), ("x", "weight", "--user", "root"),
        ("x", "--user", ""), ("x", "--user", "no such user"), ("x", "--cgroup", "a"), ("x", "--cgroup", "/a*"),
        ("x", "--comm", "python3*"), ("x", "--comm", "y" * 16), ("x", "--user", "root", "--refuse", "emperor"),
        ("x", "--user", "root", "--refuse", "groups=-1"), ("x", "--user", "root", "--refuse", "gpus=64"),
        ("x", "--user", "root", "--refuse", "slices", "--refuse", "slices"),
    )], ("policy", "map", "unset", ""), ("policy", "map", "unset", "a/b"),
    ("policy", "use", "../fair"), ("policy", "use", "none"), ("policy", "use", "x" * 5000 + ".py"),
    ("simulate", "--trace", ""), ("simulate", "--trace", "emperor"), ("simulate", "--trace", "/nowhere.toml"),
    ("simulate", "--trace", "/etc/passwd"), ("simulate", "--trace", "x" * 5000 + ".toml"), ("simulate", "--policy", ""),
    ("simulate", "--policy", "emperor"), ("simulate", "--compress", "5"), ("simulate", "--seed", "x"),
    ("simulate", "--policy", "none", "--option", "x=1"), ("simulate", "--seed", "-1"), ("simulate", "--gpus", "10001"),
    ("emulator", "--gpus", "17"), ("emulator", "--gpus", "0"), ("emulator", "--dir", ""),
    ("emulator", "--", ""), ("run", "--", ""), ("run", "--class", "batch", "--", "", "x"), ("emperor",), ("", "ps"),
    ("--emperor",), ("PS",),
    ("trace",), ("trace", "--out", "x", "--seconds", "0"), ("demo", "--seconds", "1"), ("demo", "--seconds", "3601"),
    ("doctor", "extra"), ("doctor", "--device", "emperor"), ("top", "1", "2"), ("top", "0"), ("attach", "1\0"), ("\0",),
    ("run", "--", "a\0b"), ("attach", "1", "--group", "a\0b"),
]  # fmt: skip

BAD_FILES = [
    "",
    ".",
    "/",
    "/tmp",
    "-",
    "/nowhere/x.png",
    "/etc/passwd/x.png",
    "x" * 300 + ".png",
    "/nowhere/" + "x" * 5000,
]
WRITERS = [("simulate", "--plot"), ("trace", "--out"), ("demo", "--out")]


@pytest.fixture(autouse=True)
def nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Whatever a command is told, it starts nothing, and leaves nothing behind where it was called."""

    def refused(*words: object) -> None:
        raise AssertionError(f"something was started: {words}")

    for name in [name for name in os.environ if name.startswith(("RUNLIST_", "CUDA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RUNLIST_SOCKET", str(tmp_path / "s" / "daemon.sock"))
    monkeypatch.setattr(os, "execve", refused)
    monkeypatch.setattr(client, "start_private", refused)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield
    assert list(tmp_path.rglob("*")) == [tmp_path / "here"]


Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Gives a command bad words, and returns its one line; with --json the same comes as JSON."""

    def check(*words: str, code: int = USAGE) -> str:
        with pytest.raises(SystemExit) as caught:
            main(list(words))
        captured = capsys.readouterr()
        assert caught.value.code == code, captured
        lines = captured.err.splitlines()
        assert len(lines) == 1, captured.err
        assert lines[0].startswith("runlist: ")
        assert lines[0].isprintable()
        line = lines[0].removeprefix("runlist: ")
        assert len(line.split()) > 2
        expected = {"error": line, "exit_code": code} if "--json" in words and "--" not in words else None
        assert (json.loads(captured.out) if captured.out else None) == expected
        return line

    return check


def shown(words: object) -> str:
    """A short name of a case."""
    return " ".join(words)[:40].encode("unicode_escape").decode() if isinstance(words, tuple) else ""


@pytest.mark.parametrize(("key", "value"), SETTINGS, ids=[f"{key}={value[:20]!r}" for key, value in SETTINGS])
def test_values_of_settings(refused: Refused, key: str, value: str) -> None:
    for words in (("run", f"--{key}={value}", "--", "true"), ("attach", "1", f"--{key}", value, "--json")):
        line = refused(*words)
        assert line.startswith(f"{key}=" if value else f"--{key} is empty")
    refused("set", "1", f"{key}={value}", "--json")
    refused("set", "1", "weight=5" if key != "weight" else "class=batch", f"{key}={value}")


@pytest.mark.parametrize("pid", BAD_PIDS)
@pytest.mark.parametrize("command", ["attach", "detach", "suspend", "resume", "release", "set"])
def test_process_ids(refused: Refused, command: str, pid: str) -> None:
    refused(command, pid, *(["class=batch"] if command == "set" else []))


@pytest.mark.parametrize("pid", ["99999999", str(1 << 31), str(1 << 64), "9" * 300])
def test_processes_that_are_not_there(refused: Refused, pid: str) -> None:
    assert pid[:20] in refused("release", pid, "--json", code=NO_TARGET)


@pytest.mark.parametrize("number", BAD_NUMBERS)
@pytest.mark.parametrize("words", NUMBERS, ids=shown)
def test_numbers(refused: Refused, words: tuple[str, ...], number: str) -> None:
    refused(*words, number)


@pytest.mark.parametrize("words", COMBINATIONS, ids=shown)
def test_words_that_do_not_go_together(refused: Refused, words: tuple[str, ...]) -> None:
    line = refused(*words)
    if words[0] in ("set", "release", "policy", "simulate"):
        assert refused(*words, "--json") == line


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("words", WRITERS, ids=shown)
def test_files_that_cannot_be_written(refused: Refused, words: tuple[str, ...], name: str) -> None:
    assert words[1] in refused(*words, name)


def test_every_option_that_is_given_twice(refused: Refused) -> None:
    """All of them, of all commands: the second would win, and the first would have been taken silently."""
    count = 0
    for path, command in _commands(typer.main.get_command(application()), ()):
        for option in command.params:
            if option.param_type_name != "option" or option.multiple or option.name in ("help", "version"):
                continue
            for name in option.opts:
                if "completion" in name:
                    continue
                once = [name] if option.is_flag else [name, "5"]
                assert "give it once" in refused(*path, *once, *once)
                count += 1
    assert count > 60


def test_every_command_refuses_what_it_does_not_know(refused: Refused) -> None:
    for path, _ in _commands(typer.main.get_command(application()), ()):
        assert "No such option" in refused(*path, "--emperor")


def _commands(command: typer.main.ClickCommand, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
    for name, child in (children or {}).items():
        yield from _commands(child, (*path, name))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--install-completion",), "HOME"), (("daemon", "--install", "--user"), "XDG_CONFIG_HOME"),
        (("profile", "show"), "XDG_STATE_HOME"), (("profile", "clear"), "XDG_STATE_HOME"),
    ],
)  # fmt: skip
def test_who_has_no_home(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], wanted: str
) -> None:
    """As the id of a container's user that no list of users has."""

    def nobodys() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nobodys)
    assert refused(*words, code=NO_PERMISSION) == f"this user has no home folder: set {wanted}"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RUNLIST_DEVICE", "emperor"), ("RUNLIST_MEMORY", "8"), ("RUNLIST_MEMORY", "٨G"), ("RUNLIST_CAP", "x"),
        ("RUNLIST_CAP", "٣٠"), ("CUDA_DEVICE_MEMORY_LIMIT", "lots"),
        ("CUDA_DEVICE_SM_LIMIT", "nan"),
    ],
)  # fmt: skip
def test_the_environment(refused: Refused, monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    refused("run", "--", "true")


def test_a_deadline_beats_a_class_of_the_environment(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two people said these: the nearer one counts, and only then the GPU is missed."""
    monkeypatch.setenv("CUDA_TASK_PRIORITY", "1")
    monkeypatch.setenv("RUNLIST_DEVICE", "no.such.module")
    assert "no device" in refused("run", "--deadline", "5ms/20ms", "--", "true")


# -- as processes ----------------------------------------------------------------------------------


def process(*words: str | bytes, **options: object) -> tuple[int, bytes]:
    done = subprocess.run(
        [sys.executable, "-m", "runlist.cli", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True, timeout=100, **options,
    )  # fmt: skip
    assert done.stdout == b""
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words", [(b"\xff\xfe",), (b"attach", b"\xff"), (b"run", b"--group", b"a\xff", b"--", b"true")], ids=repr
)
def test_words_that_are_no_text(words: tuple[bytes, ...]) -> None:
    code, err = process(*words)
    assert (code, len(err.splitlines())) == (USAGE, 1)
    assert err.startswith(b"runlist: ")


@needs_others
def test_files_that_are_not_ours(tmp_path: Path) -> None:
    """A file that cannot be read, and a folder that cannot be written."""

    def tried(*words: str) -> tuple[int, str]:
        with contextlib.redirect_stderr(io.StringIO()) as err, pytest.raises(SystemExit) as caught:
            main(list(words))
        return caught.value.code, err.getvalue()

    missing = str(tmp_path / "missing.py")
    for words in (("daemon", "--rules"), ("simulate", "--trace"), ("policy", "use")):
        tried(*words, missing)  # where Python is root's they cannot read what is imported later
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "rules.toml").write_text("")
    for words, wanted in (
        (("daemon", "--rules", str(closed / "rules.toml")), USAGE),
        (("simulate", "--trace", str(closed / "rules.toml")), USAGE),
        (("simulate", "--plot", "/etc/x.png"), NO_PERMISSION),
        (("trace", "--out", "/etc/x"), NO_PERMISSION),
        (("policy", "use", str(closed / "mine.py")), USAGE),
        (("release", "1"), NO_PERMISSION),
    ):
        code, line = As(NOBODY)(lambda words=words: tried(*words))
        assert (code, len(line.splitlines())) == (wanted, 1), line
        assert line.startswith("runlist: ")
    shutil.rmtree(closed)
