"""Making the specification for this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runlist import files, interpreter, paths, trusted
from runlist.errors import NotSupportedError, UsageError
from runlist.integrations.cdi import spec
from runlist.integrations.kubernetes import names
from runlist.planes.process.library import library
from runlist.planes.registry import choose_plane
from runlist.protocol import environment_autogen as variables

MOST = 16 << 20
"""Bytes of another specification."""

ENDINGS = (".json", ".yaml")
"""Of the files that engines read."""

_KIND = re.compile(
    rb"\bkind[\"']?\s*:\s*[\"']?" + re.escape(names.CDI_KIND).encode() + rb"[\"']?\s*(?:[,}#]|$)", re.MULTILINE
)


def generate(device: str | None, *, preload: bool = True, hook: bool = True) -> dict[str, Any]:
    """The specification of the GPUs that are here. Without `preload` containers get no library, without `hook` no rule:
    the daemon then manages what it is told by others. Raises RunlistError.
    """
    plane = choose_plane(device)
    watch = plane.watch_gpus()
    try:
        found = watch.look(0.0)
    finally:
        watch.close()
    gpus = [gpu for gpu in found if not gpu.sick]
    if found and not gpus:
        raise NotSupportedError(f"no GPU here is fit for work: {found[0].uuid}: {found[0].sick}")
    if not gpus:
        plane.check()  # it says what is missing
        raise NotSupportedError("no GPU is here: install or load the NVIDIA driver, or name another --device")
    messages = paths.tenants_folder(plane)
    paths.make_private(messages.parent)
    paths.make_private(messages, 0o755)  # a runtime refuses to mount what is not there
    words = interpreter.command("runlist.integrations.cdi.hook", str(paths.drop_ins(plane))) if hook else []
    extra = spec.emulated_edits(plane.environment()) if plane.name == variables.EMULATED else None
    return spec.spec(gpus, library() if preload else None, messages, words, _hook_environment(os.environ), extra)


def read(path: Path) -> str:
    """Another specification, whose hooks become ours. Raises RunlistError where others could change it, OSError and
    ValueError.
    """
    with open(trusted.open_file(path), "rb") as file:
        return file.read(MOST).decode()


def write(path: Path, text: str) -> None:
    """Write a specification so that nobody reads half of it. It says what engines run as root: so it goes to no folder
    whose owner could put another in its place, and replaces nobody else's. Raises RunlistError or OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    trusted.check(path.parent)
    if path.is_file() and path.stat().st_size and not _is_ours(path):
        raise UsageError(f"{path} is there, and none of {names.CDI_KIND}: take another name, or remove it")
    for other in sorted(path.parent.iterdir()):
        if other.suffix in ENDINGS and other.name != path.name and other.is_file() and _is_ours(other):
            raise UsageError(
                f"{other} has these devices, too, and engines would take neither: write that one, or remove it"
            )
    files.replace(path, text.encode())


def _is_ours(path: Path) -> bool:
    """Whether a specification is of our kind of devices, whoever wrote it and in which form."""
    with path.open("rb") as file:
        return _KIND.search(file.read(MOST)) is not None


def _hook_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """A runtime gives a hook no variables but these."""
    return {name: environment[name] for name in ("HOME", "PATH") if name in environment}
