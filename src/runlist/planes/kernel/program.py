"""The object file of the programs: their instructions, and where in them maps and places are named."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQ")
_MACHINE = 247
_CODE, _SYMBOLS, _RELOCATIONS = 1, 2, 9
_FUNCTION = 2
_MAP_IN_TWO_WORDS = 1  # the kind of relocation
_LOAD_TWO_WORDS = 0x18
_MAP_DESCRIPTOR = 1  # what the second register number of that instruction then says
_HOOK = "lsm.s"
_KINDS = ("tracepoint", "uprobe", _HOOK)
PLACE = "at_"
"""What names begin with that are no maps but numbers: where in a structure of the kernel's a field is."""


class Program(msgspec.Struct, frozen=True):
    """For a tracepoint `group/name`, of kind `uprobe`, or for a hook where the kernel asks whether that may
    be; `maps` are names by the place of the instruction that wants them.
    """

    name: str
    kind: str
    tracepoint: str
    instructions: bytes
    maps: Mapping[int, str]

    @property
    def hook(self) -> str:
        """The name of its hook, if it is for one."""
        return self.tracepoint if self.kind == _HOOK else ""

    def with_maps(self, descriptors: Mapping[str, int], places: Mapping[str, int] | None = None) -> bytes:
        """Its instructions with descriptors and places put in. Raises ValueError for one that is not known."""
        code = bytearray(self.instructions)
        for at, name in self.maps.items():
            known = places or {} if name.startswith(PLACE) else descriptors
            wanted = name.removeprefix(PLACE) if name.startswith(PLACE) else name
            if wanted not in known:
                raise ValueError(f"{self.name} wants a map {name}")
            code[at + 1] = code[at + 1] & 0x0F | (0 if known is not descriptors else _MAP_DESCRIPTOR) << 4
            struct.pack_into("<i", code, at + 4, known[wanted])
        return bytes(code)


class _Section(msgspec.Struct, frozen=True):
    name: str
    kind: int
    data: bytes
    link: int
    info: int


def read(data: bytes) -> tuple[list[Program], str]:
    """The programs of an object file, and its licence. Raises ValueError for what is none."""
    try:
        return _read(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"it is damaged: {error}") from None


def _read(data: bytes) -> tuple[list[Program], str]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is no object file of 64 bits, little-endian")
    header = _HEADER.unpack_from(data)
    if header[2] != _MACHINE:
        raise ValueError("it is for another processor than the kernel's own")
    sections = _sections(data, header[6], header[12], header[13])
    symbols = next((section for section in sections if section.kind == _SYMBOLS), None)
    if symbols is None:
        raise ValueError("it has no symbols")
    names = sections[symbols.link].data
    table = list(_SYMBOL.iter_unpack(symbols.data))
    programs = []
    for number, section in enumerate(sections):
        kind, _, tracepoint = section.name.partition("/")
        if kind not in _KINDS or section.kind != _CODE:
            continue
        if len(section.data) % 8:
            raise ValueError(f"{section.name} ends in the middle of an instruction")
        own = next((row for row in table if row[3] == number and row[1] & 0xF == _FUNCTION), None)
        if own is None:
            raise ValueError(f"{section.name} has no function")
        maps: dict[int, str] = {}
        for other in sections:
            if other.kind == _RELOCATIONS and other.info == number:
                maps.update(_maps(other.data, section.data, table, names))
        programs.append(Program(_text(names, own[0]), kind, tracepoint, section.data, maps))
    licence = next((section.data for section in sections if section.name == "license"), b"")
    return programs, licence.split(b"\0", 1)[0].decode("ascii")


def _sections(data: bytes, at: int, count: int, names: int) -> list[_Section]:
    rows = [_SECTION.unpack_from(data, at + number * _SECTION.size) for number in range(count)]
    texts = _content(data, rows[names])
    return [_Section(_text(texts, row[0]), row[1], _content(data, row), row[6], row[7]) for row in rows]


def _content(data: bytes, row: tuple[int, ...]) -> bytes:
    found = data[row[4] : row[4] + row[5]]
    if row[1] != 8 and len(found) != row[5]:  # a section without content in the file
        raise ValueError("it ends too early")
    return found


def _maps(relocations: bytes, code: bytes, table: list[tuple[int, ...]], names: bytes) -> Mapping[int, str]:
    found = {}
    for at, info in _RELOCATION.iter_unpack(relocations):
        if info & 0xFFFFFFFF != _MAP_IN_TWO_WORDS or at % 8 or at + 16 > len(code) or code[at] != _LOAD_TWO_WORDS:
            raise ValueError(f"a relocation at {at} is of a kind that no map has")
        found[at] = _text(names, table[info >> 32][0])
    return found


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode("ascii")
