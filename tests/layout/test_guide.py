"""The guide has the table of settings as it is, and pages show what comes out."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from runlist.cli import main

TOOL = runpy.run_path(str(Path(__file__).resolve().parents[2] / "tools" / "make_guide"))


def test_the_guides_table_is_the_one_of_the_settings() -> None:
    text = TOOL["GUIDE"].read_text()
    assert TOOL["generated"](text) == text, "run tools/make_guide"
    assert TOOL["generated"](text.replace("| `cap` |", "| `cup` |")) == text


def test_without_its_marks_nothing_is_written() -> None:
    for mark in (mark for marks in TOOL["MARKS"].values() for mark in marks):
        with pytest.raises(SystemExit, match=r"needs the lines .*, in this order"):
            TOOL["generated"](TOOL["GUIDE"].read_text().replace(mark, ""))


def test_the_manual_page_has_every_command_and_option() -> None:
    man = runpy.run_path(str(Path(__file__).resolve().parents[2] / "tools" / "make_man"))
    assert man["PAGE"].read_text() == man["page"](), "run tools/make_man"


@pytest.mark.parametrize("page", ["guide.md", "policies.md"])
def test_the_simulations_of_the_pages_come_out_as_they_show(
    page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    text = (TOOL["GUIDE"].parent / page).read_text()
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)):
        (tmp_path / ("one_at_a_time.py" if "\nPOLICY = OneAtATime" in code else f"{number}.py")).write_text(code)
    ((words, shown),) = re.findall(r"^\$ runlist (simulate [^\n]*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 0
    out = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    rows = [row for row in (" ".join(line.split()) for line in shown.splitlines()) if "CPU time" not in row]
    assert len(rows) > 3
    assert [row for row in rows if row not in out and "─" not in row] == []
