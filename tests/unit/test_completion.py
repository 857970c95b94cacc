"""Shells complete words: the scripts that the package brings, in the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "completion"
BIN = Path(sys.executable).parent
BASH = """
source "$1"; shift
compopt() { :; }  # Bash has it while it completes, only
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_runlist runlist
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
_arguments() { print -r -- "$*" }
words=(${(s: :)1}) CURRENT=$#words
source "$2"
"""


def _said(*words: str) -> str:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert not done.stderr.strip(), done.stderr
    return done.stdout


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_a_shell_that_completes_nothing_is_told_which_do(option: str, tmp_path: Path) -> None:
    """As in a container, where one is in `sh`."""
    shell = tmp_path / "dash"
    shutil.copy(shutil.which("dash") or "/bin/sh", shell)
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    words = [str(shell), "-c", f"runlist {option}; exit $?"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    wanted = "runlist: there is no completion for this shell: call this from bash, zsh or fish\n"
    assert (done.returncode, done.stdout, done.stderr) == (5, "", wanted)
    assert [path.name for path in tmp_path.iterdir()] == ["dash"]


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        (("runlist", "sus"), ["suspend"]),
        (("runlist", "run", "--class", "ba"), ["batch"]),
        (("runlist", "set", "42", "cla"), ["class="]),
        # As Bash takes words apart, and puts what it gets behind the last sign.
        (("runlist", "set", "42", "class", "=", "ba"), ["batch"]),
        (("runlist", "set", "42", "class", "="), ["deadline", "latency", "normal", "batch"]),
        (("runlist", "set", "42", "weight", "=", "50", "class", "=", "ba"), ["batch"]),
        (("runlist", "run", "--class", "=", "ba"), ["batch"]),
        (("runlist", "nothing"), []),
    ],
)
def test_bash(words: tuple[str, ...], answers: list[str]) -> None:
    assert _said("bash", "--norc", "-c", BASH, "bash", str(SCRIPTS / "runlist.bash"), *words).split() == answers


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh: apt-get install zsh")
@pytest.mark.parametrize(("line", "word"), [("runlist sus", "suspend"), ("runlist set 42 class=ba", "class=batch")])
def test_zsh(line: str, word: str) -> None:
    assert word in _said("zsh", "-f", "-c", ZSH, "zsh", line, str(SCRIPTS / "_runlist"))


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish: apt-get install fish")
@pytest.mark.parametrize(("line", "word"), [("runlist sus", "suspend"), ("runlist set 42 class=ba", "class=batch")])
def test_fish(line: str, word: str) -> None:
    said = _said("fish", "--no-config", "-c", f"source {SCRIPTS / 'runlist.fish'}; complete -C '{line}'")
    assert [line.split("\t")[0] for line in said.splitlines()] == [word]


def test_what_is_no_question_of_bash_stays_as_it_is() -> None:
    from runlist.cli.complete import whole_words

    for asked in ({}, {"_RUNLIST_COMPLETE": "complete_zsh", "COMP_WORDS": "a\n=", "COMP_CWORD": "1"},
                  {"_RUNLIST_COMPLETE": "complete_bash", "COMP_WORDS": "a\n=", "COMP_CWORD": "x"}):  # fmt: skip
        environment = dict(asked)
        with whole_words(environment):
            assert environment == asked
