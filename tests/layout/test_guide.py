"""The guide has the table of settings as it is."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

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
