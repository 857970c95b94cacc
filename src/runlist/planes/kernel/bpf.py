"""bpf(2) and perf_event_open(2), as far as they are needed here: maps, programs, links, types, pins."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import struct
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import IntEnum
from pathlib import Path

import msgspec

_SYS_BPF = {"x86_64": 321, "aarch64": 280}.get(platform.machine())
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}.get(platform.machine())
_PERF_TYPE_TRACEPOINT = 2
_PERF_ATTRIBUTE_BYTES = 112
_PERF_CLOSE_ON_EXEC = 8
_COUNTS_NOTHING = 1  # an event that is off: a program runs all the same, and nothing else is done for it
_ATTACH_PERF_EVENT = 41
_ATTACH_MANY = 48
_AT_RETURN = 1
_UPROBES = Path("/sys/bus/event_source/devices/uprobe")
_ATTACH_HOOK = 27
_MAY_WAIT = 16
_LOG_BYTES = 1 << 16
_INFORMATION = struct.Struct("<5I")
_NAME_BYTES = 15

_libc = ctypes.CDLL(None, use_errno=True)


class MapType(IntEnum):
    """Types of maps, as the kernel numbers them."""

    HASH = 1
    ARRAY = 2
    PER_CPU_ARRAY = 6
    STACK_TRACES = 7
    LRU_HASH = 9
    RING = 27


class ProgramType(IntEnum):
    """Types of programs, likewise: for calls of functions, for tracepoints, and for hooks of security modules."""

    PROBE = 2
    TRACEPOINT = 5
    HOOK = 29


class _Command(IntEnum):
    MAP_CREATE = 0
    MAP_LOOKUP = 1
    MAP_UPDATE = 2
    MAP_DELETE = 3
    PROGRAM_LOAD = 5
    PIN = 6
    GET = 7
    INFORMATION = 15
    RAW_TRACEPOINT_OPEN = 17
    TYPES_LOAD = 18
    MAP_LOOKUP_BATCH = 24
    LINK_CREATE = 28


class Refused(OSError):
    """The kernel refused a program; `log` is what its verifier said."""

    def __init__(self, code: int, log: str) -> None:
        super().__init__(code, os.strerror(code))
        self.log = log


def why_not(name: str, error: OSError) -> str:
    """In words, why the kernel did not load a program of that name."""
    if isinstance(error, Refused):
        said = [line for line in error.log.splitlines() if line.strip() and not line.startswith("processed ")]
        return f"the kernel refuses the program {name}: {said[-1].strip() if said else error.strerror}"
    return f"the kernel does not load the program {name}: {error.strerror}"


def _bpf(command: _Command, attributes: bytes) -> int:
    return _asked(command, ctypes.create_string_buffer(attributes, len(attributes)))


def _asked(command: _Command, data: ctypes.Array[ctypes.c_char]) -> int:
    """The answer; what else the kernel says is in `data` then."""
    if _SYS_BPF is None:
        raise OSError(38, "this processor is not known here")
    result: int = _libc.syscall(ctypes.c_long(_SYS_BPF), ctypes.c_long(command), data, ctypes.c_ulong(len(data)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


_BATCH = struct.Struct("<QQQQIIQQ")
_AT_ONCE = 4096  # entries; no bucket of a map has so many


def _address(buffer: ctypes.Array[ctypes.c_char]) -> int:
    return ctypes.addressof(buffer)


def _name(name: str) -> bytes:
    return name.encode()[:_NAME_BYTES]  # the structures that it is put into have a 0 behind it


@functools.cache
def possible_cpus() -> int:
    """How many processors there may ever be while the kernel runs: a value of a map per CPU has a part for each."""
    text = Path("/sys/devices/system/cpu/possible").read_text().strip()
    return int(text.rpartition(",")[2].rpartition("-")[2]) + 1


class Map(msgspec.Struct, frozen=True):
    """An open map. Keys and values are bytes of its sizes; in a map per CPU a value has one part for each."""

    fd: int
    key_bytes: int
    value_bytes: int

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        value = ctypes.create_string_buffer(self.value_bytes)
        try:
            self._element(_Command.MAP_LOOKUP, key, _address(value))
        except FileNotFoundError:
            return None
        return value.raw

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key's value."""
        held = ctypes.create_string_buffer(value, self.value_bytes)
        self._element(_Command.MAP_UPDATE, key, _address(held))

    def delete(self, key: bytes) -> bool:
        """Delete a key; whether it was there."""
        try:
            self._element(_Command.MAP_DELETE, key, 0)
        except FileNotFoundError:
            return False
        return True

    def entries(self, of: AbstractSet[int] | None = None) -> Iterator[tuple[bytes, bytes]]:
        """All keys of a hash map with their values, read many at a time. Those that come meanwhile may be left out, and
        so may those that begin with none of the numbers `of`: most maps have nothing of who ended.
        """
        keys = ctypes.create_string_buffer(_AT_ONCE * self.key_bytes)
        values = ctypes.create_string_buffer(_AT_ONCE * self.value_bytes)
        before, after = (ctypes.create_string_buffer(max(4, self.key_bytes)) for _ in range(2))
        begun = ended = False
        while not ended:
            data = ctypes.create_string_buffer(_BATCH.size)
            place = _address(before) if begun else 0
            _BATCH.pack_into(data, 0, place, _address(after), _address(keys), _address(values), _AT_ONCE, self.fd, 0, 0)
            try:
                _asked(_Command.MAP_LOOKUP_BATCH, data)
            except FileNotFoundError:  # these are the last
                ended = True
            begun, (before, after) = True, (after, before)
            count = _BATCH.unpack(data)[4]
            found = ctypes.string_at(keys, count * self.key_bytes)
            if of is not None and of.isdisjoint(memoryview(found).cast("I")[:: self.key_bytes // 4]):
                continue
            with_them = ctypes.string_at(values, count * self.value_bytes)
            for at in range(count):
                yield (
                    found[at * self.key_bytes : (at + 1) * self.key_bytes],
                    with_them[at * self.value_bytes : (at + 1) * self.value_bytes],
                )

    def all_keys(self) -> Iterator[bytes]:
        """All keys of a hash map."""
        return (key for key, _ in self.entries())

    def _element(self, command: _Command, key: bytes, value: int) -> None:
        held = ctypes.create_string_buffer(key, self.key_bytes)
        _bpf(command, struct.pack("<I4xQQQ", self.fd, _address(held), value, 0))


def make_map(
    name: str, kind: MapType, key: int, value: int, entries: int, types: tuple[int, int, int] | None = None
) -> int:
    """A descriptor of a new map. `types` are those that `load_types` gave, of the key and of the value in them."""
    described = types or (0, 0, 0)
    return _bpf(
        _Command.MAP_CREATE,
        struct.pack("<7I16s4I", kind, key, value, entries, 0, 0, 0, _name(name), 0, *described),
    )


def load_types(blob: bytes) -> int:
    """A descriptor of types (BTF)."""
    held = ctypes.create_string_buffer(blob, len(blob))
    return _bpf(_Command.TYPES_LOAD, struct.pack("<QQIII4x", _address(held), 0, len(blob), 0, 0))


def load_program(
    name: str,
    instructions: bytes,
    licence: str,
    kind: ProgramType = ProgramType.TRACEPOINT,
    *,
    many: bool = False,
    hook: int = 0,
) -> int:
    """A descriptor of a program; `many` is for `attach_to_functions`, and `hook` the number of the function where the
    kernel asks it whether something may be. Raises Refused with the verifier's words, or OSError.
    """
    flags, attached = (_MAY_WAIT, _ATTACH_HOOK) if hook else (0, _ATTACH_MANY if many else 0)
    code = ctypes.create_string_buffer(instructions, len(instructions))
    words = ctypes.create_string_buffer(licence.encode())

    def load(log: ctypes.Array[ctypes.c_char] | None) -> int:
        level, size, at = (1, len(log), _address(log)) if log is not None else (0, 0, 0)
        count = len(instructions) // 8
        return _bpf(
            _Command.PROGRAM_LOAD,
            struct.pack(
                "<IIQQIIQII16sII36xI8x", kind, count, _address(code), _address(words), level, size, at, 0, flags,
                _name(name), 0, attached, hook,
            ),
        )  # fmt: skip

    try:
        return load(None)
    except PermissionError:  # of the kernel's rights, or of the verifier
        pass
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    log = ctypes.create_string_buffer(_LOG_BYTES)
    try:
        return load(log)
    except OSError as error:
        raise Refused(error.errno or 0, log.value.decode("ascii", "replace")) from None


def attach(program: int, tracepoint: int) -> tuple[int, int]:
    """Attach a program to the tracepoint of this id; the two descriptors that keep it so."""
    attributes = struct.pack("<IIQ24xQ", _PERF_TYPE_TRACEPOINT, _PERF_ATTRIBUTE_BYTES, tracepoint, _COUNTS_NOTHING)
    # of whichever process, on whichever CPU: one of them stands for all
    return _attach(program, attributes, pid=-1, cpu=0, cookie=0)


def attach_to_function(
    program: int, path: str, offset: int, pid: int, cookie: int, *, at_return: bool
) -> tuple[int, int]:
    """Attach a program to the function at this place of a file, in all threads of a process, where it is called or
    where it returns; `cookie` is what the program sees. The two descriptors that keep it so. Raises OSError.
    """
    kind = int((_UPROBES / "type").read_text())
    bit = int((_UPROBES / "format" / "retprobe").read_text().removeprefix("config:")) if at_return else None
    name = ctypes.create_string_buffer(os.fsencode(path))
    attributes = struct.pack(
        "<IIQQQQQIIQQ", kind, _PERF_ATTRIBUTE_BYTES, 0 if bit is None else 1 << bit, 1, 0, 0, 0, 0, 0,
        _address(name), offset,
    )  # fmt: skip
    return _attach(program, attributes, pid=pid, cpu=-1, cookie=cookie)


def attach_to_functions(program: int, path: str, cookies: Mapping[int, int], pid: int, *, at_return: bool) -> int:
    """The same for functions at many places of a file, each with its cookie, at once; one descriptor. Letting go of it
    takes as long as for a single one. Raises OSError; kernels before 6.10 do it for one thread alone, or not at all.
    """
    name = ctypes.create_string_buffer(os.fsencode(path))
    places = (ctypes.c_uint64 * len(cookies))(*cookies)
    seen = (ctypes.c_uint64 * len(cookies))(*cookies.values())
    attributes = struct.pack(
        "<IIIIQQQQIIII", program, 0, _ATTACH_MANY, 0, _address(name), ctypes.addressof(places), 0,
        ctypes.addressof(seen), len(cookies), _AT_RETURN if at_return else 0, pid, 0,
    )  # fmt: skip
    return _bpf(_Command.LINK_CREATE, attributes)


def _attach(program: int, attributes: bytes, *, pid: int, cpu: int, cookie: int) -> tuple[int, int]:
    held = ctypes.create_string_buffer(attributes, _PERF_ATTRIBUTE_BYTES)
    event: int = _libc.syscall(
        ctypes.c_long(_SYS_PERF_EVENT_OPEN or -1),
        held,
        ctypes.c_int(pid),
        ctypes.c_int(cpu),
        ctypes.c_int(-1),
        ctypes.c_ulong(_PERF_CLOSE_ON_EXEC),
    )
    if event < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    try:
        return event, _bpf(_Command.LINK_CREATE, struct.pack("<IIIIQ", program, event, _ATTACH_PERF_EVENT, 0, cookie))
    except BaseException:
        os.close(event)
        raise


def attach_hook(program: int) -> int:
    """Attach a program for a hook; the descriptor that keeps it so."""
    return _bpf(_Command.RAW_TRACEPOINT_OPEN, struct.pack("<QI4x", 0, program))


def get(path: str) -> int:
    """A descriptor of what has this name."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    return _bpf(_Command.GET, struct.pack("<QII", _address(name), 0, 0))


def describe(fd: int) -> tuple[int, int, int, int]:
    """The type of a map, the bytes of a key and of a value, and how many entries it has room for."""
    held = ctypes.create_string_buffer(_INFORMATION.size)
    _bpf(_Command.INFORMATION, struct.pack("<IIQ", fd, len(held), _address(held)))
    kind, _, key, value, entries = _INFORMATION.unpack(held.raw)
    return kind, key, value, entries


def pin(fd: int, path: str) -> None:
    """Give what a descriptor is of a name in a file system for that (bpf)."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    _bpf(_Command.PIN, struct.pack("<QII", _address(name), fd, 0))
