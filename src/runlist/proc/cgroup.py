"""The cgroup of a process, the container and the units of systemd that it names, and its CPU weight."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from runlist.proc.process import read

MOUNT = Path("/sys/fs/cgroup")
"""Where the unified hierarchy is."""

UNITS = (".service", ".scope", ".slice")
"""How the units of systemd end that have a cgroup."""

_MAX_BYTES = 1 << 16
_SLURM = re.compile(r"/slurm(?:_[^/]+)?/uid_[0-9]+/job_[0-9]+(?:/|$)")
_MANAGER = re.compile(r"user@([0-9]{1,10})\.service")
_PARTS = 3
_PODS_OF_PODMAN = "libpod_parent"
"""Without systemd, a pod's cgroup below it has the pod's id for its name."""
_CONTAINER = re.compile(r"(?:(.*)[-:])?([0-9a-f]{64})(?:\.scope)?")
_ID = re.compile(r"(?:[0-9]{1,10}:)?[0-9a-f]{64}")


def cgroup_of(pid: int) -> tuple[str, str]:
    """The cgroup v2 path of a process, and the id of the container that it is in; each empty where there is none. Where
    Slurm's job, or root's container, is in the older hierarchies alone, that is the path. A container below a cgroup of
    another user has that user's number before its id (`1000:ID`): whoever owns a cgroup gives any names to those below.
    """
    lines = [line.split(":", 2) for line in read(pid, "cgroup", _MAX_BYTES).split("\n")]  # names may have other breaks
    paths = [(controllers, path) for _, controllers, path in (line for line in lines if len(line) == _PARTS)]
    paths = [(controllers, path if controllers else _whole(path)) for controllers, path in paths]
    path = next((path for controllers, path in paths if not controllers), "")
    path = next((path for _, path in paths if _SLURM.match(path)), path)
    for controllers, found in paths:
        if container := _container_below_us(found):
            if owner := _owner_above(controllers, found, container):
                return path, f"{owner}:{container}"
            return path if _containers(path) or _SLURM.match(path) else found, container
    return path, ""


def _whole(path: str) -> str:
    """A path of the unified hierarchy from its root on. One that lies outside of our own namespace of cgroups, as for a
    daemon in a pod, begins with `/..`; it stays so where the machine's own hierarchy is not mounted here.
    """
    begin = _namespace(os.getpid()) if path.startswith("/..") else ""
    return posixpath.normpath(begin + path) if begin else path


@lru_cache(1)
def _namespace(pid: int) -> str:
    """Where our own namespace of cgroups begins, found by who is in which; empty where that is not seen."""
    lines = read(pid, "cgroup", _MAX_BYTES).split("\n")
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    for top in (MOUNT / "unified", MOUNT):
        for folder, _, _ in os.walk(top) if (top / "cgroup.controllers").exists() else ():
            with contextlib.suppress(OSError):
                if str(pid) in Path(folder, "cgroup.procs").read_text().split():
                    return folder.removeprefix(str(top)).removesuffix(own.rstrip("/"))
    return ""


def _container_below_us(path: str) -> str:
    """The container of a process that counts here: the outermost one that we are not in ourselves, since a node of
    Kubernetes may be a container, too (kind, and older hierarchies show what is above). Of who is in all that we are in
    it is the innermost.
    """
    found = _containers(path)
    if len(found) < 2:
        return "".join(found)
    around = read(os.getpid(), "cgroup", _MAX_BYTES)
    return next((one for one in found if one not in around), found[-1])


def _owner_above(controllers: str, path: str, container: str) -> int:
    """The user who owns a cgroup above a container, and so may have made it; 0 for root, and for ourselves."""
    parts = path.split("/")
    above = parts[1 : next(place for place, part in enumerate(parts) if container in part)]
    tops = [MOUNT / controllers.removeprefix("name=")] if controllers else [MOUNT, MOUNT / "unified"]
    return _delegated(above, tops)[1]


def _delegated(parts: list[str], tops: list[Path]) -> tuple[int, int]:
    """How many parts of a path there are until a cgroup was given to another user, that one included, and whose it is;
    all, and 0, where none was. Of a path from outside of our namespace the names tell.
    """
    found = [(len(parts), 0)]
    for place, part in enumerate(parts, 1):
        if (match := _MANAGER.fullmatch(part)) and int(match[1]) not in (0, os.geteuid()):
            found.append((place, int(match[1])))
    for top in tops if ".." not in parts else ():
        with contextlib.suppress(OSError, ValueError):
            known = (0, os.geteuid(), os.stat(top).st_uid)
            for place in range(1, len(parts) + 1):
                if (owner := os.stat(top.joinpath(*parts[:place])).st_uid) not in known:
                    found.append((place, owner))
                    break
    return min(found, key=lambda one: (one[0], not one[1]))


def unified() -> Path | None:
    """Where the unified hierarchy is mounted as paths of cgroups name it: from the root of our own cgroup namespace on.
    None where it is not, or where another part of it is there.
    """
    with contextlib.suppress(OSError):
        for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
            words = line.split()
            root, place, kind = words[3], Path(words[4]), words[words.index("-") + 1]
            if kind == "cgroup2" and place in (MOUNT / "unified", MOUNT):
                return place if root == "/" and (place / "cgroup.controllers").exists() else None
    return None


def number_of(cgroup: str, above: Path | None) -> int | None:
    """The number by which the kernel knows a cgroup v2 path, where `above` is `unified`; None where there is no such
    cgroup.
    """
    parts = cgroup.split("/")
    if above is None or not cgroup.startswith("/") or ".." in parts:
        return None
    with contextlib.suppress(OSError, ValueError):
        return above.joinpath(*(part for part in parts if part)).stat().st_ino
    return None


def granted(cgroup: str) -> str:
    """The part of a cgroup v2 path that its administrator made: below a container, and below a cgroup that was given to
    a user, they make and weigh others as they like.
    """
    parts, container = cgroup.split("/")[1:], _container_below_us(cgroup)
    inner = next((place for place, part in enumerate(parts, 1) if container and container in part), len(parts))
    place, _ = _delegated(parts[:inner], [MOUNT / "systemd", *(above for above, _ in hierarchies(MOUNT))])
    return "".join(f"/{part}" for part in parts[:place])


def container_of(cgroup: str) -> str:
    """The container id in a cgroup path, as Docker, containerd, CRI-O and Podman name cgroups; empty without one.

    The outermost one: below it, a process may make and name cgroups as it likes.
    """
    return next(iter(_containers(cgroup)), "")


def _containers(cgroup: str) -> list[str]:
    """All ids in a path, the outermost first."""
    found = []
    for above, part in pairwise(["", *cgroup.split("/")]):
        match = _CONTAINER.fullmatch(part)
        # conmon watches the container from outside, and a pod is none
        if match and not (match[1] or "").endswith("conmon") and (above != _PODS_OF_PODMAN or match[1]):
            found.append(match[2])
    return found


def is_container(text: str) -> bool:
    """Whether a container may be called so, with the user before it where there is one."""
    return _ID.fullmatch(text) is not None


def units_of(cgroup: str) -> list[str]:
    """The units of systemd that a cgroup is of, its slices first. Below its first service or scope, whoever runs there
    may name cgroups as they like; but the units of one's own user manager are one's own.
    """
    units = []
    for component in cgroup.split("/"):
        if component.endswith(UNITS):
            units.append(component)
        if component.endswith((".service", ".scope")) and component != f"user@{os.geteuid() or -1}.service":
            break
    return units


def hierarchies(mount: Path) -> list[tuple[Path, str]]:
    """Where cgroups are and what has their weight: unified, beside the older ones, or older alone."""
    older = [(mount / name, "cpu.shares") for name in ("cpu", "cpu,cpuacct")]
    return [(mount, "cpu.weight"), (mount / "unified", "cpu.weight"), *older]


class CpuWeights:
    """The CPU weights of cgroups, and which ones it was asked for: 1 to 10000, as in cpu.weight, 100 where there is
    none. A cgroup for which the CPU is not divided has the weight of the next one above that says it.
    """

    def __init__(self, mount: Path = MOUNT) -> None:
        self._mount = mount
        self._known: dict[str, int] = {}

    def of(self, cgroup: str) -> int:
        """The weight of a cgroup now."""
        weight = self._known[cgroup] = self._read(cgroup)
        return weight

    def changed(self) -> bool:
        """Whether any is another than when it was asked for. Those that are gone are forgotten."""
        changed = False
        for cgroup, weight in list(self._known.items()):
            if not any((above / cgroup.lstrip("/")).is_dir() for above, _ in hierarchies(self._mount)):
                del self._known[cgroup]
            elif (now := self._read(cgroup)) != weight:
                self._known[cgroup] = now
                changed = True
        return changed

    def _read(self, cgroup: str) -> int:
        parts = [part for part in granted(cgroup).split("/") if part not in ("", ".", "..")]
        for depth in range(len(parts), 0, -1):
            for above, name in hierarchies(self._mount):
                try:
                    number = int((above.joinpath(*parts[:depth]) / name).read_text())
                except (OSError, ValueError):
                    continue
                weight = number if name == "cpu.weight" else round(number * 100 / 1024)  # as systemd counts shares
                return min(10_000, max(1, weight))
        return 100
