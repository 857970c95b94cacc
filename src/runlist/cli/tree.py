"""The preparation of `runlist run`: the region that its processes share, and the library in them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from runlist import paths
from runlist.cli import child
from runlist.cli.common import say
from runlist.errors import RunlistError, UsageError
from runlist.planes.interface import Plane
from runlist.planes.process import preload, region
from runlist.planes.process.library import library
from runlist.protocol import environment_autogen as names


class Tree(msgspec.Struct, frozen=True):
    """`region` is the descriptor of the region for the daemon, None where there is none; `variables` are added to the
    command's environment, and `inherited` are descriptors that it has, too.
    """

    region: int | None = None
    variables: Mapping[str, str] = {}
    inherited: tuple[int, ...] = ()


def needs_region(settings: Mapping[str, str], *, strict: bool) -> bool:
    """Whether a command with these settings does not start without a region."""
    return strict and bool({"memory", "cap"} & settings.keys())


def check_limit(settings: Mapping[str, str], *, with_library: bool, strict: bool) -> None:
    """Raise UsageError for a memory limit without the library, or within another."""
    if "memory" not in settings:
        return
    if os.environ.get(names.REGION):
        raise UsageError("this runs inside another `runlist run`, which has the memory limit: give it there")
    if not with_library:
        raise UsageError("a memory limit needs the library in the command: leave out --no-preload")
    if strict and (switch := preload.turned_off(os.environ)) == names.DISABLE:
        raise UsageError(f"a memory limit needs the library, which {switch} turns off: unset it, or use --no-strict")


@contextlib.contextmanager
def prepared(
    plane: Plane, command: list[str], settings: Mapping[str, str], *, with_library: bool, strict: bool
) -> Iterator[Tree]:
    """A tree's region, for as long as the command runs; it stays where processes of it are left in the background.

    Raises RunlistError, where `strict`, when a limit that is asked for has no region to be in. Otherwise that is said,
    and the command runs all the same. `check_limit` comes before.
    """
    limited = "memory" in settings
    if os.environ.get(names.REGION) or not with_library:
        yield Tree()
        return
    try:
        made = _make(plane, strict if limited else None)
    except RunlistError as error:
        if needs_region(settings, strict=strict):
            raise
        say(f"{error}; going on without")
        yield Tree()
        return
    path, tree, opened = made
    if limited and (reason := preload.obstacle(command[0])):
        say(f"{reason}: its memory cannot be limited from inside; shares and caps work all the same")
    try:
        yield tree
    finally:
        opened.close()
        if not child.are_left():
            region.remove(path)


def _make(plane: Plane, strict: bool | None) -> tuple[Path, Tree, region.Region]:
    try:
        found = library()
    except FileNotFoundError as error:
        raise RunlistError(f"{error}, or use --no-preload") from None
    directory = paths.regions_dir(plane)
    paths.make_private(directory)
    with contextlib.suppress(OSError):
        region.sweep(directory)
    path, opened = region.create(directory, strict=bool(strict))
    try:
        variables = preload.variables(found, path, strict=strict, inherited=os.environ)
    except BaseException:
        opened.close()
        region.remove(path)
        raise
    return path, Tree(opened.fileno(), variables), opened
