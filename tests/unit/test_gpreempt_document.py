"""The page of the artifact: it is what the newest run says."""

from __future__ import annotations

from pathlib import Path

from bench.papers.gpreempt import document, tables
from bench.papers.gpreempt.analysis import Results
from bench.papers.gpreempt.cells import Cell, Store

ROOT = Path(__file__).parents[2]


def test_the_document_is_that_of_the_newest_run() -> None:
    papers = ROOT / "docs" / "papers"
    newest = max(papers.glob("runs/*-nvidia-gpreempt"), key=lambda folder: folder.name)
    text = document.text(Results.of(Store(newest)))
    assert (papers / "gpreempt.md").read_text() == text, f"plot -r {newest} --document docs/papers/gpreempt.md"


def test_what_was_left_out_for_one_reason_is_one_row() -> None:
    refused = {
        "A": {"mps": "too old"},
        "B": {"mps": "too old", "hint-50": "for A", "hint-100": "for A"},
        "Y": {"hint-50": "for A", "hint-100": "for A", "blocks": "cannot stop"},
    }
    rows = tables.left_out(Results({"refused": refused})).rows
    assert ("A, B", "mps", "too old") in rows
    assert ("B, Y", "hint-50, hint-100", "for A") in rows
    assert ("Y", "blocks", "cannot stop") in rows


def test_what_was_said_of_a_run_is_in_its_document(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(tmp_path / "machine.json", {"device": "nvidia", "gpus": ["H"], "commit": "c", "window_s": 1})
    store.put(Cell("A", "alone", "LC only", 1))
    assert store.remarks() == ""
    (tmp_path / "remarks.txt").write_text("The machine was **loud**.\n")
    assert "\nThe machine was **loud**.\n\n| claim" in document.text(Results.of(store))
