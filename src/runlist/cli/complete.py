"""Words that a shell may complete with. They are looked up when a shell asks, and ask no daemon."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections.abc import Iterable, Iterator, MutableMapping

_ASKING = "_RUNLIST_COMPLETE"
"""What a shell asks by, in the environment; Typer reads it."""
_BASH = "complete_bash"
_SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
"""Those that Typer has scripts for."""


@contextlib.contextmanager
def whole_words(environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Within this, Bash is answered as if it took no words apart: for it `class=ba` is three words, and of an answer it
    wants what comes after the last sign. Where no Bash asks, nothing is done.
    """
    words, at = environment.get("COMP_WORDS", "").split("\n"), environment.get("COMP_CWORD", "")
    if environment.get(_ASKING) != _BASH or "=" not in words or not at.isdecimal():
        yield
        return
    joined = [""]
    for before, word in itertools.pairwise(["", *words[: int(at) + 1]]):
        if "=" in (before, word) and len(joined) > 2:
            joined[-1] += word
        else:
            joined.append(word)
    environment["COMP_WORDS"], environment["COMP_CWORD"] = "\n".join(joined[1:]), str(len(joined) - 2)
    typed = joined[-1].rpartition("=")[0]
    there = f"{typed}=" if typed else ""
    answers = io.StringIO()
    try:
        with contextlib.redirect_stdout(answers):
            yield
    finally:
        print("\n".join(line.removeprefix(there) for line in answers.getvalue().splitlines()))


@contextlib.contextmanager
def for_a_shell(words: list[str]) -> Iterator[None]:
    """Around Typer's own options about completion, which are not clear where they cannot do anything. Raises
    NoPermissionError for who has no home, and NotSupportedError in a shell that is none of theirs.
    """
    if not {"--install-completion", "--show-completion"} & set(words[:1]):
        yield
        return
    import shellingham

    from runlist.errors import NotSupportedError
    from runlist.paths import home

    if "--install-completion" in words:
        home("HOME")
    try:
        known = shellingham.detect_shell()[0] in _SHELLS
    except shellingham.ShellDetectionFailure:
        known = False
    if not known:
        raise NotSupportedError("there is no completion for this shell: call this from bash, zsh or fish")
    yield


def devices(incomplete: str) -> list[str]:
    """Names of devices."""
    from runlist.planes.registry import PLANES

    return beginning(incomplete, PLANES)


def policies(incomplete: str) -> list[str]:
    """Names of policies."""
    from runlist.policies import builtin_policies

    return beginning(incomplete, builtin_policies())


def profiled_gpus(incomplete: str) -> list[str]:
    """Kinds of GPU of which profiles are kept."""
    from runlist import paths
    from runlist.errors import RunlistError
    from runlist.operations.profiles import Store

    try:
        return beginning(incomplete, Store(paths.profiles_dir()).gpus())
    except RunlistError:
        return []


def traces(incomplete: str) -> list[str]:
    """Names of ready traces."""
    from runlist.sim import builtin_traces

    return beginning(incomplete, builtin_traces())


def settings(incomplete: str) -> list[str]:
    """`key=value` of settings: the keys, then the values of one that has words for values."""
    from runlist.settings.table import SETTINGS

    key, equals, _ = incomplete.partition("=")
    if not equals:
        return beginning(incomplete, (f"{name}=" for name in SETTINGS))
    return beginning(incomplete, (f"{key}={word}" for word in values_of(key)))


def values_of(key: str) -> list[str]:
    """The words that a setting takes for a value: those in small letters."""
    from runlist.model import TaskClass
    from runlist.settings.table import SETTINGS

    if key == "class":
        return list(TaskClass)
    return [word for word in SETTINGS[key].values.split("|") if word.islower()] if key in SETTINGS else []


def beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    """Those of some words that may be meant."""
    return [word for word in words if word.startswith(incomplete)]
