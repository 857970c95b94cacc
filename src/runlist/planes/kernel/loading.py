"""Loading the programs: their maps are made and filled, they are attached, and what is for people gets names."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec

from runlist.errors import NotSupportedError
from runlist.planes.interface import Capture
from runlist.planes.kernel import bpf, inheriting, kernel_types, maps, program, refusing, rights
from runlist.planes.kernel.kernel_types import KernelTypes
from runlist.planes.kernel.names import Names
from runlist.planes.kernel.types import Types
from runlist.planes.process.library import program as built
from runlist.protocol import kernel_autogen as protocol

OBJECT = "capture.bpf.o"
_NUMBER = struct.Struct("<I")


class Wanted(msgspec.Struct, frozen=True):
    """What is to be captured, but for process `own`; `names` is where people find the maps, if anywhere. `exempt` are
    processes that are never refused anything.
    """

    capture: Capture
    own: int
    budget: int
    names: Names | None = None
    settle_ms: int = 0
    exempt: tuple[int, ...] = ()


class Loaded(msgspec.Struct):
    """The maps by name. The programs run as long as `held` is open. `unpinned` says why nothing has a name, if so, and
    `lenient` why the kernel refuses nothing.
    """

    maps: dict[str, int]
    held: list[int]
    names: Names | None = None
    unpinned: str = ""
    lenient: str = ""

    def close(self, *, leave: bool = False) -> None:
        """Stop, and take the names away, or leave them for the next daemon."""
        for fd in (*self.held, *self.maps.values()):
            os.close(fd)
        if self.names is not None and not leave:
            self.names.take_away()


def read_object() -> bytes:
    """The object file. Raises NotSupportedError where this installation has none."""
    try:
        return built(OBJECT).read_bytes()
    except OSError as error:
        raise NotSupportedError(f"{error.strerror or error}") from None


def load(wanted: Wanted, data: bytes, tracing: int) -> Loaded:
    """Load all of it; nothing is left behind where that fails. Raises NotSupportedError, which says what to do."""
    with contextlib.ExitStack() as undo:
        loaded = Loaded({}, [])
        undo.callback(loaded.close)
        try:
            programs, licence = program.read(data)
        except ValueError as error:
            raise NotSupportedError(
                f"{OBJECT} of this installation cannot be read ({error}): reinstall runlist"
            ) from None
        _make_maps(loaded, None if wanted.names is None else wanted.names.left())
        types = kernel_types.find()
        _fill(loaded, wanted, types)
        for each in programs:
            if not each.hook:
                _attach(loaded, each, licence, tracing, types.places)
            else:
                loaded.lenient = refusing.attach(loaded.maps, each, licence, types, loaded.held)
        if wanted.names is not None:
            loaded.unpinned = wanted.names.give(loaded.maps)
            loaded.names = None if loaded.unpinned else wanted.names
        undo.pop_all()
    return loaded


def _make_maps(loaded: Loaded, before: Path | None) -> None:
    types = Types(protocol.STRUCTS)
    described: int | None = None
    if before is not None:
        loaded.maps |= inheriting.open_left(before)
    with contextlib.suppress(OSError):  # they are for people alone
        described = bpf.load_types(types.blob())
    try:
        for each in maps.MAPS:
            if each.name in loaded.maps:
                continue
            ids = None
            if described is not None and each.kind is not bpf.MapType.RING:
                ids = (described, types.ids[each.key], types.ids[each.value])
            try:
                loaded.maps[each.name] = bpf.make_map(each.name, each.kind, *each.sizes, each.entries, ids)
            except PermissionError:
                raise NotSupportedError("no right to load programs into the kernel: run the daemon as root") from None
            except OSError as error:
                raise NotSupportedError(f"the kernel makes no map {each.name}: {error.strerror}") from None
    finally:
        if described is not None:
            os.close(described)


def open_map(name: str, fd: int) -> bpf.Map:
    """One of them, by its descriptor."""
    (described,) = (each for each in maps.MAPS if each.name == name)
    key, value = described.sizes
    if described.kind is bpf.MapType.PER_CPU_ARRAY:
        value *= bpf.possible_cpus()
    return bpf.Map(fd, key, value)


def _fill(loaded: Loaded, wanted: Wanted, types: KernelTypes) -> None:
    capture = wanted.capture
    shapes, rules, watched, settings = (
        open_map(name, loaded.maps[name]) for name in ("shapes", "rules", "watched", "settings")
    )
    for request, shape in capture.shapes.items():
        shapes.put(_NUMBER.pack(request), shape)
    for number, rule in enumerate(capture.rules):
        rules.put(_NUMBER.pack(number), rule)
    for command, flags in capture.watched.items():
        watched.put(_NUMBER.pack(command), _NUMBER.pack(flags))
    exempt = open_map("exempt", loaded.maps["exempt"])
    for pid in wanted.exempt:
        exempt.put(_NUMBER.pack(pid), _NUMBER.pack(1))
    mask, value = _in_common(list(capture.shapes))
    set_ = maps.STRUCTURES["SETTINGS"].pack(
        own=wanted.own, budget=wanted.budget, mask=mask, value=value, loader=os.getpid(),
        settle_ms=wanted.settle_ms, major=capture.files.major, files=types.files, inode=capture.files.inode,
        device=os.major(capture.files.device) << 20 | os.minor(capture.files.device),
    )  # fmt: skip
    settings.put(_NUMBER.pack(0), bytes(set_))


def _in_common(requests: list[int]) -> tuple[int, int]:
    """The bits that all numbers have alike, as a mask, and those bits."""
    differ = 0
    for request in requests:
        differ |= request ^ requests[0]
    mask = ~differ & 0xFFFFFFFF
    return mask, (requests[0] if requests else 1) & mask


def _attach(
    loaded: Loaded, each: program.Program, licence: str, tracing: int, places: Mapping[str, int]
) -> None:  # fmt: skip
    try:
        number = rights.tracepoint_id(tracing, each.tracepoint)
    except OSError as error:
        raise NotSupportedError(rights.no_tracepoint(each.tracepoint, error)) from None
    try:
        code = bpf.load_program(each.name, each.with_maps(loaded.maps, places), licence)
    except OSError as error:
        raise NotSupportedError(bpf.why_not(each.name, error)) from None
    try:
        loaded.held += bpf.attach(code, number)
    except OSError as error:
        why = f"the kernel does not attach {each.name} ({error.strerror}): Linux 5.15 or later is needed"
        raise NotSupportedError(why) from None
    finally:
        os.close(code)
