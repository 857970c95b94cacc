"""What `runlist run` prepares for the processes that it starts: the region that they share, and the library in them."""

from __future__ import annotations

import contextlib
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

_SM_LIMIT = "CUDA_DEVICE_SM_LIMIT"
_HAMI_SETTINGS = {"CUDA_DEVICE_MEMORY_LIMIT": "memory", _SM_LIMIT: "cap"}
_HAMI_SINGLE = re.compile(f"({'|'.join(_HAMI_SETTINGS)})_[0-9]+")
_OWN_SETTINGS = {"RUNLIST_MEMORY": "memory", "RUNLIST_CAP": "cap"}
_NO_CAP = {"", "0", "max", "none"}


@dataclass(frozen=True)
class Tree:
    """`region` is the descriptor of the region that goes to the daemon, None where there is none; `variables` are added
    to the command's environment.
    """

    region: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


def _hami(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that count where HAMi's have a say."""
    if environment.get("CUDA_DISABLE_CONTROL", "").lower() == "true":
        return {}
    uncapped = environment.get("GPU_CORE_UTILIZATION_POLICY", "").lower() == "disable"
    return {name: value for name, value in environment.items() if value and not (uncapped and _SM_LIMIT in name)}


def of_single_gpus(environment: Mapping[str, str]) -> set[str]:
    """Settings that the environment has for single GPUs, in HAMi's way. The library in the command sees to them."""
    if environment.get(preload.REGION_VARIABLE):
        return set()  # whoever made the region took them
    return {_HAMI_SETTINGS[match[1]] for name in _hami(environment) if (match := _HAMI_SINGLE.fullmatch(name))}


def defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings that the environment asks for, under our names and HAMi's. Ours win."""
    hami, single = _hami(environment), of_single_gpus(environment)
    settings = {key: hami[name] for name, key in _HAMI_SETTINGS.items() if name in hami and key not in single}
    if hami.get("CUDA_TASK_PRIORITY") == "1":
        settings["class"] = "batch"
    settings |= {key: environment[name] for name, key in _OWN_SETTINGS.items() if environment.get(name)}
    if environment.get(preload.REGION_VARIABLE):
        settings.pop("memory", None)  # whoever made the region took it
    if _is_no_cap(settings.get("cap", "max")):
        settings.pop("cap", None)
    return settings


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
    single = of_single_gpus(os.environ)
    limited = "memory" in settings or "memory" in single
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
    try:
        made = _make(driver, strict if limited else None, single_caps="cap" in single)
    except RunlistError as error:
        if strict:
            raise
        _say(f"{error}; going on without")
        yield Tree()
        return
    path, tree, opened = made
    if limited and (reason := preload.obstacle(command[0])):
        _say(f"{reason}: its memory cannot be limited from inside; shares and caps hold all the same")
    try:
        yield tree
    finally:
        opened.close()
        if not _has_children():
            path.unlink(missing_ok=True)


def _make(driver: Driver, strict: bool | None, *, single_caps: bool) -> tuple[Path, Tree, region.Region]:
    try:
        found = library()
    except FileNotFoundError as error:
        raise RunlistError(f"{error}, or use --no-preload") from None
    directory = paths.regions_dir(driver)
    paths.make_private(directory)
    region.sweep(directory)
    path, opened = region.create(directory, strict=bool(strict), single_caps=single_caps)
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


def _say(line: str) -> None:
    print(f"runlist: {line}", file=sys.stderr, flush=True)
