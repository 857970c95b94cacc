"""A definition of protocol/*.toml, read and found to be sound. protocol/README.md says what it may hold."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Built = TypeVar("Built")


class BadDefinitionError(Exception):
    """What is wrong with a definition, in one line."""


def check(condition: object, where: str, what: str) -> None:
    """Raise BadDefinitionError unless the condition holds."""
    if not condition:
        raise BadDefinitionError(f"{where}: {what}")


# -- structures ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Type:
    """Of a field: a number, with `struct`'s code; or a structure, with fields. Sizes are in bytes."""

    cpp: str
    size: int
    align: int
    code: str = ""
    fields: tuple[Field, ...] = ()

    @property
    def codes(self) -> str:
        """Those of its fields, if these are numbers of one kind with nothing between them."""
        codes = "".join(field.type.code for field in self.fields)
        alike = len(set(codes)) == 1 and all(field.count is None for field in self.fields)
        return codes if alike and sum(field.size for field in self.fields) == self.size else ""


@dataclass(frozen=True)
class Field:
    """One of a structure. `count` is of an array; `default` is C++."""

    at: int
    name: str
    type: Type
    count: int | None
    default: str
    about: str

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.type.size * (1 if self.count is None else self.count)


NUMBERS = {
    "u8": Type("std::uint8_t", 1, 1, "B"),
    "u16": Type("std::uint16_t", 2, 2, "H"),
    "u32": Type("std::uint32_t", 4, 4, "I"),
    "u64": Type("std::uint64_t", 8, 8, "Q"),
    "i32": Type("std::int32_t", 4, 4, "i"),
    "i64": Type("std::int64_t", 8, 8, "q"),
    "pointer": Type("void*", 8, 8, "Q"),
    "bytes": Type("std::uint8_t", 1, 1, "s"),
}
_WRITTEN = re.compile(r"(?P<atomic>atomic )?(?P<name>\w+)(\[(?P<count>\w+)\])?( = (?P<default>\w+))?")

# -- tables, as they are written -------------------------------------------------------------------


@dataclass(frozen=True)
class Constant:
    """A number, a text (or some), or a number that is written as the text of its bytes."""

    value: Any
    type: str = "u32"
    about: str = ""
    hex: bool = False


@dataclass(frozen=True)
class Enum:
    """Numbers of one kind. `cpp` is "enum", "enum class", or "namespace NAME" for one with constants in it."""

    about: str
    cpp: str
    members: Mapping[str, Any]
    type: str = "u32"
    hex: bool = False
    flags: bool = False

    @property
    def constants(self) -> dict[str, Constant]:
        """Its members."""
        tables = {key: one if isinstance(one, dict) else {"value": one} for key, one in self.members.items()}
        return {key: build(Constant, key, {"type": self.type, "hex": self.hex, **one}) for key, one in tables.items()}


@dataclass(frozen=True)
class Struct:
    """`python` are the fields that Python is to know, `allocates` the classes of RM that it makes objects of."""

    about: str
    bytes: int
    fields: list[list[Any]]
    align: int = 1
    python: list[str] | None = None
    allocates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """Parameters of an earlier driver's control."""

    bytes: int
    fields: list[list[Any]]


@dataclass(frozen=True)
class Control:
    """A control of RM. `sent`: by us, too."""

    number: int
    target: str
    privilege: str
    effect: str
    bytes: int
    fields: list[list[Any]]
    older: tuple[Mapping[str, Any], ...] = ()
    sent: bool = True


@dataclass(frozen=True)
class Variable:
    """A name in the environment."""

    name: str
    whose: str
    about: str
    gives: str = ""
    library: bool = False
    per_gpu: bool = False
    switch: bool = False


@dataclass(frozen=True)
class Figure:
    """What was measured: one `value`, or one for the `emulator` and one for the `simulator`."""

    about: str
    unit: str = ""
    type: str = ""
    value: Any = None
    emulator: Any = None
    simulator: Any = None
    source: str = ""
    differs: str = ""


UNITS = {"": ("", ""), "ns": ("", " ns"), "us": ("MICROSECOND", " µs"), "ms": ("MILLISECOND", " ms")}
"""Of figures: the constant that a number of them is multiplied with, and what follows it in a text."""


@dataclass(frozen=True)
class File:
    """All of a file."""

    about: str
    namespace: str
    python_structs: str = "layouts"
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    enums: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    structs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    targets: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    privileges: Mapping[str, str] = dataclasses.field(default_factory=dict)
    controls: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def build(kind: type[Built], where: str, table: Mapping[str, Any]) -> Built:
    """A table as what it is: with all that it must have, and nothing that is not known."""
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in table:
        check(key in known, where, f"what is {key!r}?")
    for key, field in known.items():
        may_miss = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        check(key in table or may_miss, where, f"has no {key!r}")
    return kind(**table)


# -- a file ----------------------------------------------------------------------------------------


class Definition:
    """One file. Raises BadDefinitionError."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        try:
            self.file = build(File, "all of it", tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise BadDefinitionError(str(error)) from None
        self.types = dict(NUMBERS)
        self.constants = self._built(Constant, self.file.constants)
        self.enums = self._built(Enum, self.file.enums)
        self.structs = self._built(Struct, self.file.structs)
        self.controls = self._built(Control, self.file.controls)
        self.variables = self._built(Variable, self.file.variables)
        self.figures = self._built(Figure, self.file.figures)
        for key, constant in self.constants.items():
            self._check_constant(key, constant)
        for key, enum in self.enums.items():
            self._add_enum(key, enum)
        for key, struct in self.structs.items():
            self._add_struct(key, struct)
        self.layouts = {key: self._layout(key, camel(key), one) for key, one in self.controls.items()}
        self.older = {key: list(self._older(key, one)) for key, one in self.controls.items()}
        self._check_controls()
        self._once("name", {key: one.name for key, one in self.variables.items()})
        for key, figure in self.figures.items():
            self._check_figure(key, figure)

    def _built(self, kind: type[Built], tables: Mapping[str, Any]) -> dict[str, Built]:
        return {key: build(kind, key, table) for key, table in tables.items()}

    def _once(self, what: str, values: Mapping[str, Any]) -> None:
        seen: dict[Any, str] = {}
        for key, value in values.items():
            check(value not in seen, key, f"{what} {value} is that of {seen.get(value)}, too")
            seen[value] = key

    def _check_constant(self, key: str, one: Constant) -> None:
        check(one.type in NUMBERS or one.type == "text", key, f"no type {one.type!r}")
        if one.type != "text":
            number, size = number_of(one), NUMBERS[one.type].size
            check(0 <= number < 1 << 8 * size, key, f"{number} is no {one.type}")

    def _add_enum(self, key: str, one: Enum) -> None:
        for name, member in one.constants.items():
            self._check_constant(f"{key}.{name}", member)
        self._once("number", {f"{key}.{name}": hexadecimal(number_of(of)) for name, of in one.constants.items()})
        if one.cpp in ("enum", "enum class"):
            base = NUMBERS[one.type]
            self.types[key] = Type(key, base.size, base.size, base.code)
        else:
            check(one.cpp.startswith("namespace "), key, f"what is {one.cpp!r}?")

    def _add_struct(self, key: str, one: Struct) -> None:
        type_ = self.types[key] = self._layout(key, camel(key), one)
        names = {field.name for field in type_.fields}
        for name in one.python or ():
            check(name in names, key, f"has no field {name!r}")
        for name in one.allocates:
            check(name in self.enums["Class"].members, key, f"no class {name!r}")

    def _layout(self, key: str, cpp: str, one: Struct | Control | Layout) -> Type:
        """Fields lie where a compiler would put them, and what is between them is padding."""
        fields: list[Field] = []
        end, align = 0, getattr(one, "align", 1)
        for row in one.fields:
            check(len(row) in (3, 4), key, f"a field is [offset, name, type, about], not {row}")
            field = self._field(key, *row)
            here = f"{key}.{field.name}"
            check(all(field.name != other.name for other in fields), here, "another field has this name")
            check(field.at >= end, here, f"begins at {field.at}, before the end of the field in front of it, {end}")
            check(field.at % field.type.align == 0, here, f"begins at {field.at}, no multiple of {field.type.align}")
            fields.append(field)
            end, align = field.at + field.size, max(align, field.type.align)
        check(end <= one.bytes, key, f"its fields take {end} bytes, not {one.bytes}")
        check(one.bytes % align == 0, key, f"has {one.bytes} bytes, no multiple of {align}")
        return Type(cpp, one.bytes, align, fields=tuple(fields))

    def _field(self, where: str, at: int, name: str, written: str, about: str = "") -> Field:
        match = _WRITTEN.fullmatch(written)
        check(match and match["name"] in self.types, f"{where}.{name}", f"no type {written!r}")
        assert match is not None
        type_ = self.types[match["name"]]
        if match["atomic"]:
            type_ = Type(f"std::atomic<{type_.cpp}>", type_.size, type_.align, type_.code)
        count = None if match["count"] is None else self._number(f"{where}.{name}", match["count"])
        default = match["default"] or ""
        return Field(at, name, type_, count, k(default) if default in self.constants else default, about)

    def _number(self, where: str, word: str) -> int:
        check(word.isdecimal() or word in self.constants, where, f"no constant {word!r}")
        return int(word) if word.isdecimal() else number_of(self.constants[word])

    def _older(self, key: str, one: Control) -> Iterable[Type]:
        for table in one.older:
            yield self._layout(f"{key}.older", "", build(Layout, f"{key}.older", table))

    def _check_controls(self) -> None:
        for key, one in self.controls.items():
            check(one.target in self.file.targets, key, f"no target {one.target!r}")
            check(one.privilege in self.file.privileges, key, f"no privilege {one.privilege!r}")
        self._once("number", {key: hexadecimal(one.number) for key, one in self.controls.items()})

    def _check_figure(self, where: str, one: Figure) -> None:
        sides = [side for side in (one.emulator, one.simulator) if side is not None]
        check(bool(sides) != (one.value is not None), where, "has one value, or the emulator's and the simulator's")
        check((len(sides) == 2) == bool(one.differs), where, "`differs` says why there are two values")
        check(one.unit in UNITS, where, f"no unit {one.unit!r}")


# -- names and texts -------------------------------------------------------------------------------


def number_of(one: Constant) -> int:
    """Its number. A text stands for its bytes, little-endian."""
    return int.from_bytes(one.value.encode(), "little") if isinstance(one.value, str) else int(one.value)


def number(one: Constant, separator: str) -> str:
    """The same as it is written, with a separator of thousands."""
    return hexadecimal(number_of(one)) if one.hex else f"{number_of(one):_}".replace("_", separator)


def hexadecimal(value: int) -> str:
    """As it is written in both languages."""
    return f"0x{value:X}"


def camel(name: str) -> str:
    """MAX_GPUS as MaxGpus."""
    return "".join(word.capitalize() for word in name.split("_"))


def k(name: str) -> str:
    """MAX_GPUS as kMaxGpus."""
    return f"k{camel(name)}"


def plain(text: str) -> str:
    """Paragraphs, each one line."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def figure_text(one: Figure, other: str) -> str:
    """What is said of a figure, with the one that the `other` side has."""
    said = plain(f"{one.about} {one.source}")
    if not one.differs:
        return said
    theirs = getattr(one, other)
    values = " to ".join(f"{value:,}" for value in (theirs if isinstance(theirs, list) else [theirs]))
    return f"{said} The {other} has {values}{UNITS[one.unit][1]}: {one.differs}."
