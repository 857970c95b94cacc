"""The result files that are kept: each is what a document rests on, and what a document rests on is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench import ROOT
from bench.harness.benchmark import find
from bench.harness.results import load

RESULTS = ROOT / "docs" / "results"
FILES = sorted(path.relative_to(ROOT) for path in RESULTS.iterdir())
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
_LINK = re.compile(r"(?:\]\(|^\[[^\]]+\]: )(?P<target>[^)\s]*results/[^)\s]+)", re.MULTILINE)
_COMMAND = re.compile(r"python -m bench(?P<words>(?: +[a-z]\w*| --\w+ \w+)+)")


def cited() -> set[Path]:
    """The result files that documents link to."""
    targets = [(document.parent / match["target"]).resolve() for document in DOCUMENTS
               for match in _LINK.finditer(re.sub(r"`[^`\n]+`", "", document.read_text()))]  # fmt: skip
    return {target.relative_to(ROOT) for target in targets}


def test_every_result_is_cited_and_every_cited_one_is_there() -> None:
    assert cited() == set(FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_result_says_of_what_it_is(path: Path) -> None:
    result = json.loads((ROOT / path).read_text())
    assert re.fullmatch(r"\d+\.\d+\.\d+", result["runlist"])
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", result["commit"]), "without a commit, nobody can measure it again"
    assert result["machine"]["gpus"]
    assert result["command"].startswith("python -m bench")
    assert "/" not in result["command"].replace("docs/results", "")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_benchmarks_that_there_are(path: Path) -> None:
    named = {word for match in _COMMAND.finditer(path.read_text())
             for word in re.sub(r"--\w+ \w+", "", match["words"]).split()}  # fmt: skip
    assert named <= find().keys()


def test_each_figure_is_of_a_benchmark_that_there_is() -> None:
    assert {kept.owner(figure) for kept in load() for figure in kept.figures} <= find().keys()
