"""A definition in C++: constants, enums, and structures with assertions of where everything lies."""

from __future__ import annotations

import json
from collections.abc import Iterator

from protocols.definition import (
    NUMBERS,
    UNITS,
    Constant,
    Definition,
    Enum,
    Field,
    Figure,
    Type,
    figure_text,
    hexadecimal,
    k,
    number,
    plain,
)
from protocols.text import NOTICE, joined, wrapped

KEYWORDS = {"class", "default", "delete", "new", "operator", "private", "register", "this"}
HEADERS = {"atomic": "std::atomic", "cstddef": "offsetof", "cstdint": "std::"}
"""Headers, by what of them is used."""


def cpp(of: Definition) -> str:
    """The header's text."""
    blocks = [*_constants(of), *(_enum(name, one) for name, one in of.enums.items())]
    blocks += [_struct(one.about, of.types[name]) for name, one in of.structs.items()]
    blocks += _controls(of)
    text = "\n\n".join(blocks)
    includes = joined(*(f"#include <{header}>" for header, sign in HEADERS.items() if sign in text))
    head = joined(f"// {NOTICE.format(of.name)}\n//", _comment(of.file.about), "#pragma once")
    start, end = f"namespace {of.file.namespace} {{", f"}}  // namespace {of.file.namespace}"
    return "\n\n".join([head, *([includes] if includes else []), start, text, end]) + "\n"


def _constants(of: Definition) -> Iterator[str]:
    for name, one in of.constants.items():
        yield joined(_comment(one.about), f"inline constexpr {_declared(name, one)};")
    for name, variable in of.variables.items():
        yield joined(_comment(variable.about), f"inline constexpr {_declared(name, Constant(variable.name, 'text'))};")
    for name, figure in of.figures.items():
        value = figure.emulator if figure.value is None else figure.value
        if value is not None:
            line = f"inline constexpr {_figure_type(figure, value)} {k(name)} = {_figure(figure, value)};"
            yield joined(_comment(figure_text(figure, "simulator")), line)


def _declared(name: str, one: Constant) -> str:
    if one.type != "text":
        return f"{NUMBERS[one.type].cpp} {k(name)} = {_number(one)}"
    if isinstance(one.value, list):
        return f"const char* {k(name)}[] = {{{', '.join(json.dumps(word) for word in one.value)}}}"
    return f"char {k(name)}[] = {json.dumps(one.value)}"


def _number(one: Constant) -> str:
    return number(one, "'")


def _figure_type(one: Figure, value: float) -> str:
    return "double" if isinstance(value, float) else NUMBERS[one.type or ("i64" if one.unit else "u32")].cpp


def _figure(one: Figure, value: float) -> str:
    written = str(value) if isinstance(value, float) else f"{value:_}".replace("_", "'")
    factor = UNITS[one.unit][0]
    return f"{written} * {k(factor)}" if factor else written


def _enum(name: str, one: Enum) -> str:
    if one.cpp.startswith("namespace"):
        members = [
            joined(_comment(member.about), f"inline constexpr {_declared(key, member)};")
            for key, member in one.constants.items()
        ]
        return joined(_comment(one.about), f"{one.cpp} {{", *members, f"}}  // {one.cpp}")
    members = [
        joined(_comment(member.about, "    "), f"    {k(key)} = {_number(member)},")
        for key, member in one.constants.items()
    ]
    return joined(_comment(one.about), f"{one.cpp} {name} : {NUMBERS[one.type].cpp} {{", *members, "};")


def _struct(about: str, layout: Type) -> str:
    name = layout.cpp
    aligned = f"alignas({layout.align}) " if layout.align > 8 else ""
    lines = [_comment(about), f"struct {aligned}{name} {{"]
    end = 0
    for field in layout.fields:
        lines += [_padding(end, field.at), _comment(field.about, "    "), f"    {_member(field)};"]
        end = field.at + field.size
    lines += [_padding(end, layout.size), "};"]
    lines.append(f"static_assert(sizeof({name}) == {layout.size} && alignof({name}) == {layout.align});")
    lines += [f"static_assert(offsetof({name}, {_name(field)}) == {field.at});" for field in layout.fields]
    return joined(*lines)


def _padding(start: int, end: int) -> str:
    return f"    std::uint8_t reserved_{start}[{end - start}];" if end > start else ""


def _member(field: Field) -> str:
    length = "" if field.count is None else f"[{field.count}]"
    return f"{field.type.cpp} {_name(field)}{length}" + (f" = {field.default}" if field.default else "")


def _name(field: Field) -> str:
    return f"{field.name}_" if field.name in KEYWORDS else field.name


def _controls(of: Definition) -> Iterator[str]:
    if not of.controls:
        return
    about = "A control: its number, the class of what it is sent to, its parameters' size, and whether only root may."
    members = ("std::uint32_t number", "std::uint32_t object_class", "std::uint32_t bytes", "bool privileged")
    yield joined(_comment(about), "struct Control {", *(f"    {member};" for member in members), "};")
    for name, one in of.controls.items():
        if one.bytes:
            yield _struct(f"Parameters: {one.effect}.", of.layouts[name])
    rows = []
    for name, one in of.controls.items():
        class_ = f"class_number::{k(of.file.targets[one.target][1])}"
        words = [hexadecimal(one.number), class_, str(one.bytes), str(one.privilege != "NONE").lower()]
        rows.append(f"inline constexpr Control {k(name)}{{{', '.join(words)}}};")
    yield joined("namespace control {", *rows, "}  // namespace control")


def _comment(text: str, indent: str = "") -> str:
    return wrapped(plain(text).strip(), f"{indent}// ") if text else ""
