"""A definition in Python: plain data, and enums."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from protocols.definition import (
    UNITS,
    Constant,
    Control,
    Definition,
    Enum,
    Type,
    figure_text,
    hexadecimal,
    number,
    plain,
)
from protocols.text import NOTICE, WIDTH, joined, parts, wrapped

CLASS = "class "
"""How a block begins that has two blank lines around it."""


def python(of: Definition) -> str:
    """The module's text."""
    head = joined(f'"""{NOTICE.format(of.name)}\n', wrapped(plain(of.file.about).strip()), '"""')
    blocks = [*_constants(of), *_enums(of), *_structs(of), *_controls(of), *_variables(of)]
    used = [base for base in ("Enum", "IntEnum", "IntFlag") if any(f"({base}):" in block for block in blocks)]
    text = head + (f"\n\nfrom enum import {', '.join(used)}" if used else "")
    before = ""
    for block in blocks:
        apart = block.startswith(CLASS) or before.startswith(CLASS)
        text += ("\n\n\n" if apart else "\n\n") + block
        before = block
    return text + "\n"


def _constants(of: Definition) -> Iterator[str]:
    for name, one in of.constants.items():
        yield _assigned(name, _constant(one), one.about)
    for name, variable in of.variables.items():
        yield _assigned(name, _text(variable.name), variable.about)
    for name, figure in of.figures.items():
        value = figure.simulator if figure.value is None else figure.value
        if value is not None:
            yield _assigned(name, _figure(value, UNITS[figure.unit][0]), figure_text(figure, "emulator"))


def _enums(of: Definition) -> Iterator[str]:
    for name, one in of.enums.items():
        yield _class(name, "IntFlag" if one.flags else "IntEnum", one)
    if of.controls:
        targets = {key: said for key, (said, _) in of.file.targets.items()}
        about = "The kind of object that a control is sent to."
        yield _class("Target", "Enum", Enum(about, "", targets, type="text"))
        about = "Who may send a control on a descriptor that it holds."
        yield _class("Privilege", "Enum", Enum(about, "", of.file.privileges, type="text"))


def _structs(of: Definition) -> Iterator[str]:
    types = {name: of.types[name] for name in of.structs}
    if of.file.python_structs == "formats":
        for name, one in types.items():
            form = "<" + "".join(field.type.code for field in one.fields)
            yield _assigned(name, _text(form), ", ".join(field.name for field in one.fields) + ".")
    elif types:
        rows = [_string(_layout(one, of.structs[name].python), f"{_text(name)}: ") for name, one in types.items()]
        yield _table("STRUCTS", "dict[str, str]", rows, "Structures, as `runlist.structure.Structure` reads them.")
    rows = [f"Class.{class_}: STRUCTS[{_text(name)}]," for name, one in of.structs.items() for class_ in one.allocates]
    if rows:
        yield _table("ALLOCATIONS", "dict[Class, str]", rows, "Parameters with which objects of our own are allocated.")


def _controls(of: Definition) -> Iterator[str]:
    rows = [_control(of, name, one) for name, one in of.controls.items() if one.sent]
    if rows:
        about = "Controls: name, number, target, privilege, layout, effect, and shorter layouts of earlier drivers."
        row = "tuple[str, int, Target, Privilege, str, str, tuple[str, ...]]"
        yield _table("CONTROLS", f"tuple[{row}, ...]", rows, about)


def _variables(of: Definition) -> Iterator[str]:
    variables = of.variables.items()
    for name, whose, about in (("OWN_SETTINGS", "ours", "our"), ("HAMI_SETTINGS", "hami", "HAMi's")):
        given = {key: one.gives for key, one in variables if one.gives and one.whose == whose}
        rows = [f"{key}: {_text(setting)}," for key, setting in given.items()]
        if rows:
            yield _table(
                name, "dict[str, str]", rows, f"Settings of `runlist run` by {about} variable that gives them."
            )
    for name, flag, about in (
        ("SWITCHES", "switch", "What turns the library off; the first that is set counts."),
        ("PER_GPU", "per_gpu", "Those of which NAME_N is for one GPU."),
        ("LIBRARY", "library", "What librunlist.so reads."),
    ):
        rows = [f"{key}," for key, one in variables if getattr(one, flag)]
        if rows:
            yield _table(name, "tuple[str, ...]", rows, about)


def _control(of: Definition, name: str, one: Control) -> str:
    older = " ".join(f"{_text(_layout(layout))}," for layout in of.older[name])
    words = [f"{_text(name)},", f"{hexadecimal(one.number)},", f"Target.{one.target},", f"Privilege.{one.privilege},"]
    words = [f"        {word}" for word in words]
    words += [_string(_layout(of.layouts[name]), indent=" " * 8), _string(one.effect, indent=" " * 8)]
    return joined("(", *words, f"        ({older}),", "    ),")


def _layout(layout: Type, shown: list[str] | None = None) -> str:
    """The structure as `runlist.structure.Structure` reads it: what is not shown is padding."""
    words: list[str] = []
    end = 0
    for field in layout.fields:
        if shown is not None and field.name not in shown:
            continue
        words += [f"{field.at - end}x"] if field.at > end else []
        end = field.at + field.size
        length = "" if field.count is None else str(field.count)
        codes = field.type.codes
        if field.type.code:
            words.append(f"{field.name}:{length}{field.type.code}")
        elif not codes:
            words.append(f"{field.name}:{field.size}s")
        elif field.count is None:
            words += [f"{field.name}_{part.name}:{part.type.code}" for part in field.type.fields]
        else:
            words.append(f"{field.name}:{field.count * len(codes)}{codes[0]}")
    return " ".join(words + ([f"{layout.size - end}x"] if layout.size > end else []))


# -- pieces ----------------------------------------------------------------------------------------


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _string(text: str, before: str = "", indent: str = "    ") -> str:
    """An element of a table: `before` and a string, in as many parts as it needs."""
    line = f"{indent}{before}{_text(text)},"
    if len(line) > WIDTH:
        lines = [f"{indent}    {_text(part)}" for part in parts(text, WIDTH - len(indent) - 6)]
        line = joined(f"{indent}{before}(", *lines, f"{indent}),")
    return line


def _table(name: str, of_type: str, rows: list[str], about: str) -> str:
    start, end = "{}" if of_type.startswith("dict") else "()"
    lines = [row if row.startswith(" ") else f"    {row}" for row in rows]
    return joined(f"{name}: {of_type} = {start}", *lines, end, _docstring(about))


def _assigned(name: str, value: str, about: str) -> str:
    return joined(f"{name} = {value}", _docstring(about))


def _docstring(text: str, indent: str = "") -> str:
    text = plain(text).strip()
    line = f'{indent}"""{text}"""'
    if not text or len(line) <= WIDTH:
        return line if text else ""
    lines = wrapped(f'"""{text}', indent).split("\n")
    if len(lines) == 1:  # only the quotes have no room
        last = lines[0].rpartition(" ")
        lines = [last[0], f"{indent}{last[2]}"]
    return joined(*lines, f'{indent}"""')


def _class(name: str, base: str, one: Enum) -> str:
    rows = [joined(f"    {key} = {_constant(of)}", _docstring(of.about, "    ")) for key, of in one.constants.items()]
    return joined(f"{CLASS}{name}({base}):", _docstring(one.about, "    ") + "\n", *rows)


def _constant(one: Constant) -> str:
    if one.type != "text":
        return number(one, "_")
    if isinstance(one.value, list):
        return f"({', '.join(_text(word) for word in one.value)})"
    noqa = "  # noqa: S108 (a name: whoever uses it looks first)" if one.value in ("/tmp", "/dev/shm") else ""  # noqa: S108
    return _text(one.value) + noqa


def _figure(value: Any, factor: str) -> str:
    if isinstance(value, list):
        return f"({', '.join(_figure(one, factor) for one in value)})"
    return f"{value:_} * {factor}" if factor else f"{value:_}"
