"""`docs/papers/orion.md`: the tables between its marks are written anew, all else is left as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.papers.common.pictures import measured_on
from bench.papers.common.tables import markdown
from bench.papers.orion import tables
from bench.papers.orion.analysis import Results
from runlist import files
from runlist.errors import UsageError

BEGIN, END = "<!-- results: written by python -m bench.papers.orion plot -->\n", "<!-- end -->\n"
_BLOCK = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)


def write(path: Path, results: Results) -> None:
    """Into a document that has the marks. Raises UsageError where it has not."""
    try:
        before = path.read_text()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: name a document with the marks of the results") from None
    if len(_BLOCK.findall(before)) != 1:
        raise UsageError(f"{path} lacks the marks of the results: {BEGIN.strip()} and {END.strip()}")
    files.replace(path, _BLOCK.sub(lambda _: f"{BEGIN}\n{text(results)}\n{END}", before).encode())


def _run(machine: Mapping[str, Any]) -> str:
    rounds = machine.get("rounds")
    return f"{measured_on(machine)}, {rounds} round{'' if rounds == 1 else 's'}."


def text(results: Results) -> str:
    """What is between the marks. What was measured on an emulated GPU is no figure."""
    shown = results if results.real else Results()
    state = "No run on a GPU has been kept yet: every figure is not measured.\n"
    if shown.real:
        state = "".join(f"- {_run(machine)}\n" for machine in shown.machines)
    parts = [state]
    parts += [f"\n### {table.title}\n\n{markdown(table)}" for table in tables.all_of(shown)]
    if shown.real:
        left_out = tables.left_out(shown)
        if left_out.rows:
            parts.append(f"\n### {left_out.title}\n\n{markdown(left_out)}")
    return "".join(parts)
