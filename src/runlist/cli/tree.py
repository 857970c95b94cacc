"""What `runlist run` prepares for the processes that it starts: the region that they share, and the library in them."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runlist import paths, preload, region
from runlist.errors import RunlistError, UsageError
from runlist.native import library
from runlist.rm.transport import Driver
from runlist.sizes import parse_size

_HAMI = {"CUDA_DEVICE_MEMORY_LIMIT": "memory", "CUDA_DEVICE_SM_LIMIT": "cap"}
_OWN = {"RUNLIST_MEMORY": "memory", "RUNLIST_CAP": "cap"}
_NO_CAP = {"", "0", "max", "none"}
_NO_MEMORY = {"max", "none"}


@dataclass(frozen=True)
class Tree:
    """`region` is the descriptor of the region that goes to the daemon, None where there is none; `variables` are added
    to the command's environment.
    """

    region: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


def defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings that the environment asks for, under our names and HAMi's. Ours win."""
    settings = {**_hami(environment), **{key: environment[name] for name, key in _OWN.items() if environment.get(name)}}
    if environment.get(preload.REGION_VARIABLE):
        settings.pop("memory", None)  # whoever made the region took it
    if _is_no_cap(settings.get("cap", "max")):
        settings.pop("cap", None)
    return settings


def made_one(environment: Mapping[str, str], taken: Mapping[str, str]) -> list[str]:
    """What to say of the settings that were `taken` for every GPU, where the environment has others for single ones."""
    return [
        f"{name}_N: on every GPU the smallest holds under `runlist run`: {key}={taken[key]}"
        for name, key in _HAMI.items()
        if key in taken and len(set(_values(environment, name))) > 1
    ]


def _values(environment: Mapping[str, str], name: str) -> list[str]:
    """Of one of HAMi's variables, for all GPUs and for single ones."""
    pattern = re.compile(f"{name}(_[0-9]+)?")
    return [value for each, value in environment.items() if value and pattern.fullmatch(each)]


def _hami(environment: Mapping[str, str]) -> dict[str, str]:
    if environment.get("CUDA_DISABLE_CONTROL", "").lower() == "true":
        return {}
    found = {  # our limits hold on every GPU: the smallest, so that none has more than was meant
        key: min(values, key=_AMOUNTS[key]) for name, key in _HAMI.items() if (values := _values(environment, name))
    }
    if environment.get("GPU_CORE_UTILIZATION_POLICY", "").lower() == "disable":
        found.pop("cap", None)
    if environment.get("CUDA_TASK_PRIORITY") == "1":
        found["class"] = "batch"
    return found


def _bytes(text: str) -> float:
    """For comparing. What is malformed comes first: then the daemon says what is wrong with it."""
    octets = parse_size(text)
    if octets is None:
        return math.inf if text.strip().lower() in _NO_MEMORY else -1
    return octets or math.inf


def _percent(text: str) -> float:
    if _is_no_cap(text):
        return math.inf
    with contextlib.suppress(ValueError):
        return float(text.strip().removesuffix("%"))
    return -1


_AMOUNTS = {"memory": _bytes, "cap": _percent}


def _is_no_cap(text: str) -> bool:
    number = text.strip().removesuffix("%").strip()
    with contextlib.suppress(ValueError):
        return not 0 < float(number) < 100
    return number.lower() in _NO_CAP


@contextlib.contextmanager
def prepared(
    driver: Driver, command: list[str], settings: Mapping[str, str], *, with_library: bool, strict: bool
) -> Iterator[Tree]:
    """A tree's region, for as long as the command runs; it stays where processes of it are left in the background.

    Raises UsageError for a memory limit without the library, and, where `strict`, RunlistError when there can be no
    region. Without `strict` that is said, and the command runs all the same.
    """
    limited = "memory" in settings
    if os.environ.get(preload.REGION_VARIABLE):
        if limited:
            raise UsageError("this runs inside another `runlist run`, which has the memory limit: give it there")
        yield Tree()
        return
    if not with_library:
        if limited:
            raise UsageError("a memory limit needs the library in the command: leave out --no-preload")
        yield Tree()
        return
    if limited and strict and (switch := preload.turned_off(os.environ)) == "RUNLIST_DISABLE":
        raise UsageError(f"a memory limit needs the library, which {switch} turns off: unset it, or use --no-strict")
    try:
        made = _make(driver, strict if limited else None)
    except RunlistError as error:
        if strict:
            raise
        say(f"{error}; going on without")
        yield Tree()
        return
    path, tree, opened = made
    if limited and (reason := preload.obstacle(command[0])):
        say(f"{reason}: its memory cannot be limited from inside; shares and caps hold all the same")
    try:
        yield tree
    finally:
        opened.close()
        if not _has_children():
            path.unlink(missing_ok=True)


def _make(driver: Driver, strict: bool | None) -> tuple[Path, Tree, region.Region]:
    try:
        found = library()
    except FileNotFoundError as error:
        raise RunlistError(f"{error}, or use --no-preload") from None
    directory = paths.regions_dir(driver)
    paths.make_private(directory)
    region.sweep(directory)
    path, opened = region.create(directory, strict=bool(strict))
    try:
        variables = preload.variables(found, path, strict=strict, inherited=os.environ)
    except BaseException:
        opened.close()
        path.unlink(missing_ok=True)
        raise
    return path, Tree(opened.fileno(), variables), opened


def _has_children() -> bool:
    """Whether anything of the tree is left: its orphans are our children."""
    try:
        return os.waitpid(-1, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def say(line: str) -> None:
    """A remark of the launcher's, beside what the command says."""
    print(f"runlist: {line}", file=sys.stderr, flush=True)
