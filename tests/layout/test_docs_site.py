"""The site of the documents fails where a reader would be lost."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="make setup has mkdocs")

ROOT = Path(__file__).resolve().parents[2]
TAKEN = ("deploy", "docs", "native/hooks", "protocol", "src/runlist/integrations/systemd", "tools")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the site is made of, to be broken."""
    for folder in TAKEN:
        leave = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=leave)
    (tmp_path / "docs" / "results").symlink_to(ROOT / "docs" / "results")
    for file in (*ROOT.glob("*.md"), ROOT / "LICENSE", ROOT / "mkdocs.yml"):
        shutil.copy(file, tmp_path)
    return tmp_path


def _built(tree: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "mkdocs", "build"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stderr


def test_links_lead_to_pages_and_files(tree: Path) -> None:
    code, said = _built(tree)
    assert code == 0, said
    site = tree / "build" / "site"
    start = (site / "index.html").read_text()
    assert 'href="guide/#memory-quotas"' in start
    assert 'href="contributing/"' in start
    assert 'href="repository/LICENSE.txt"' in start
    assert 'class="mermaid"' in start
    assert (site / "repository" / "protocol" / "rm.toml").read_bytes() == (tree / "protocol" / "rm.toml").read_bytes()


def test_whatever_is_amiss_is_told(tree: Path) -> None:
    (tree / "docs" / "new.md").write_text("# New\n")
    (tree / "docs" / "checks.md").unlink()
    with (tree / "docs" / "rules.md").open("a") as page:
        page.write("\n[no page](none.md), [no anchor](guide.md#nowhere), [no file](../protocol/none.toml)\n")
    code, said = _built(tree)
    assert code != 0
    warned = "\n".join(said.split("WARNING -  "))
    for what in ("new.md", "checks.md", "'none.md'", "'guide.md#nowhere'", "'../protocol/none.toml'"):
        assert what in warned, what


def test_links_lead_from_the_front_page_to_every_page() -> None:
    """Who reads in the repository has no menu."""
    found: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in found:
            continue
        found.add(page)
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            path = (page.parent / target).resolve()
            path = path / "README.md" if path.is_dir() else path
            if path.suffix == ".md" and path.is_file():
                ahead.append(path)
    assert sorted(set((ROOT / "docs").rglob("*.md")) - found) == []
