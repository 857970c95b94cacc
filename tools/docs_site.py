"""Makes a site of the documents as they are in the repository. A hook of mkdocs, named in mkdocs.yml.

The pages of the repository's root get places among those of docs/, nothing is written twice. Links are as in the
repository: to pages they lead to the page, to other files to a copy of the file. Anchors are those that a forge makes.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
}
"""What is a page of the site though it is not in docs/."""
FOLDERS = {"docs/decisions": "decisions/README.md", "docs/results": "performance.md"}
"""Pages that say what is in a folder."""
COPIES = "repository"
"""The site's folder of files that are neither pages nor in docs/."""

_LINK = re.compile(r"(?<=\]\()(?P<path>[^\s()#:]+)(?P<rest>#[^\s()]*)?(?=[ )])")
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2\s*$", re.MULTILINE | re.DOTALL)


def slug(text: str, separator: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


def on_config(config: Any) -> Any:
    """A folder in the navigation stands for all of its pages; anchors are ours."""
    config.mdx_configs["toc"]["slugify"] = slug
    config.nav = [_expanded(entry) for entry in config.nav]
    return config


def _expanded(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {
        title: _pages(value) if isinstance(value, str) and value.endswith("/") else value
        for title, value in entry.items()
    }


def _pages(folder: str) -> list[str]:
    names = sorted(path.name for path in (ROOT / "docs" / folder).glob("*.md"))
    return [folder + name for name in sorted(names, key=lambda name: name != "README.md")]


def on_files(files: Files, config: Any) -> Files:
    """The pages that are not in docs/, and the files that pages link to."""
    for name, place in ROOT_PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    for copied in sorted({target for file in files.documentation_pages() for target in _copied(file)}):
        files.append(File.generated(config, _copy(copied), abs_src_path=str(ROOT / copied)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links, as the site has them."""
    source = _source(page.file)
    fences = [(found.start(), found.end()) for found in _FENCE.finditer(markdown)]

    def placed(found: re.Match[str]) -> str:
        if any(start <= found.start() < end for start, end in fences):
            return found[0]
        place = _place(_target(source, found["path"]))
        return (
            found[0]
            if place is None
            else posixpath.relpath(place, posixpath.dirname(page.file.src_uri)) + (found["rest"] or "")
        )

    return _LINK.sub(placed, markdown)


def _source(file: File) -> str:
    """A page's path in the repository."""
    return str(Path(file.abs_src_path or "").relative_to(ROOT))


def _target(source: str, path: str) -> str:
    """The path in the repository that a link of `source` names."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), path))


def _place(target: str) -> str | None:
    """Where the site has what is at this path of the repository; None where it has nothing."""
    if target in ROOT_PAGES or target in FOLDERS:
        return ROOT_PAGES.get(target) or FOLDERS[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return _copy(target) if (ROOT / target).is_file() else None


def _copy(target: str) -> str:
    return f"{COPIES}/{target}" + ("" if "." in posixpath.basename(target) else ".txt")


def _copied(file: File) -> set[str]:
    """What a page links to that is to be copied."""
    source = _source(file)
    targets = {
        _target(source, found["path"])
        for found in _LINK.finditer(_FENCE.sub("", Path(file.abs_src_path or "").read_text()))
    }
    return {target for target in targets if (place := _place(target)) and place.startswith(f"{COPIES}/")}
