"""What a run found, for people: a PNG a figure, one page that opens by itself, and the verdicts as a document."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

from bench.papers.common import pictures
from bench.papers.common.pictures import Kind
from bench.papers.common.tables import Table, as_csv
from bench.papers.gpreempt import document, figures, tables
from bench.papers.gpreempt.analysis import Results
from bench.papers.gpreempt.cells import Store
from bench.papers.gpreempt.claims import FAILS, HOLDS
from bench.papers.gpreempt.config import named
from runlist import files
from runlist.errors import ExitCode, MissingExtra, RunlistError, UsageError

_VERDICTS = {HOLDS: "holds", FAILS: "fails"}
_LONG = 24
_NO_MEASUREMENT = "This run was on an emulated GPU: it shows that the programs work, and measures nothing."

FOLDER, PAGE = "figures", "index.html"

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 12.5px; } th, td { border-bottom: 1px solid #ddd; padding: 3px 8px; }
th { text-align: left; vertical-align: bottom; } td { text-align: right; white-space: nowrap; }
td:first-child, td:nth-child(2) { text-align: left; } td.words { text-align: left; white-space: normal; }
.wide { overflow-x: auto; } img { width: 100%; } .none { color: #777; }
.warn { background: #fff3cd; padding: .6rem 1rem; }
.holds { color: #00643c; } .fails { color: #a33; }
"""


def main(folder: Path | None, keys: str | None, written: Path | None) -> int:
    """Draw, and write. Raises UsageError for a folder that has no run, and MissingExtra without matplotlib."""
    if folder is None:
        if written is None:
            raise UsageError("name the folder of a run with -r")
        results = Results()
    else:
        kinds = figures.chosen(keys)
        results = Results.of(Store(folder))
        try:
            _draw(results, kinds, folder / FOLDER)
        except ImportError:
            raise MissingExtra("plot", "matplotlib", "plot") from None
        except OSError as error:
            raise RunlistError(f"{error.filename}: {error.strerror}: choose another folder") from None
    if written is not None:
        written.parent.mkdir(parents=True, exist_ok=True)
        files.replace(written, document.text(results).encode())
        print(written)
    return ExitCode.DONE


def _draw(results: Results, kinds: list[Kind[Results]], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    drawn: dict[str, bytes] = {}
    for kind in kinds:
        picture = pictures.png(kind, results)
        if picture is None:
            print(f"figure {kind.key}: nothing of it was measured")
            continue
        drawn[kind.key] = picture
        files.replace(folder / f"{kind.key}.png", picture)
        print(folder / f"{kind.key}.png")
    for name, table in (("tasks", tables.disb(results)), ("comparison", tables.comparison(results))):
        files.replace(folder / f"{name}.csv", as_csv(table).encode())
    files.replace(folder / PAGE, text(results, kinds, drawn).encode())
    print(folder / PAGE)


def text(results: Results, kinds: list[Kind[Results]], drawn: dict[str, bytes]) -> str:
    """The page: everything is in it."""
    parts = ["<h1>GPreempt, tried again across processes</h1>", _machine(results)]
    parts.append(_table(tables.verdict_table(results)))
    for kind in kinds:
        parts.append(f'<h2 id="{kind.key}">Figure {kind.key}: {html.escape(kind.title)}</h2>')
        if kind.key in drawn:
            data = base64.b64encode(drawn[kind.key]).decode()
            parts.append(f'<img alt="figure {kind.key}" src="data:image/png;base64,{data}">')
        else:
            parts.append('<p class="none">Nothing of it was measured in this run.</p>')
    parts += [_table(tables.comparison(results)), _choices(results)]
    parts += [_table(tables.left_out(results)), _table(tables.disb(results))]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>GPreempt, tried again</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _machine(results: Results) -> str:
    facts = {name: value for name, value in results.machine.items() if name != "refused"}
    rows = [f"<tr><th>{html.escape(name)}</th><td class=words>{_cell(fact)}</td></tr>" for name, fact in facts.items()]
    warning = "" if results.real else f'<p class="warn">{_NO_MEASUREMENT}</p>'
    return f"{warning}<table>{''.join(rows)}</table>"


def _cell(value: Any) -> str:
    return html.escape(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def _table(table: Table) -> str:
    heading = "".join(f"<th>{html.escape(word)}</th>" for word in table.heading)
    rows = "".join(f"<tr>{''.join(map(_td, row))}</tr>\n" for row in table.rows)
    return f'<h2>{html.escape(table.title)}</h2>\n<div class="wide"><table><tr>{heading}</tr>\n{rows}</table></div>'


def _td(word: str) -> str:
    classes = [_VERDICTS.get(word, ""), "words" if len(word) > _LONG else ""]
    return f'<td class="{" ".join(filter(None, classes))}">{html.escape(word)}</td>'


def _choices(results: Results) -> str:
    notes = []
    for name in results.workloads:
        try:
            notes.append(f"<li><b>{html.escape(name)}</b>: {html.escape(named(name).note or 'as published')}</li>")
        except RunlistError:  # a file of the user's own
            notes.append(f"<li><b>{html.escape(name)}</b>: the user's own</li>")
    return f"<h2>What was chosen where nothing is published</h2><ul>{''.join(notes)}</ul>"
