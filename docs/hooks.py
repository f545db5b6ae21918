"""What MkDocs does not do by itself: files from outside ``docs/``, links out of it, tables of
certificates and of the board, marks on snippets that tests read, and a check of every link of the
finished site.
"""

from __future__ import annotations

import functools
import json
import logging
import posixpath
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mkdocs.structure.files import File

log = logging.getLogger("mkdocs.hooks")

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: Where `cargo doc` writes.
RUST = ROOT / "target" / "doc"
#: Files of the repository that are pages of the site.
INCLUDED = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}

_FENCE = re.compile(r"^(```+)([^\n`]*)\n(.*?)^\1 *$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages from outside and the documentation of the Rust crate, so that links to them
    are checked.
    """
    for source, page in INCLUDED.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for path in sorted(RUST.rglob("*")):
        # A licence of a font would be a page.
        if path.is_file() and not path.name.startswith(".") and path.suffix != ".md":
            files.append(
                File.generated(
                    config, f"rust/{path.relative_to(RUST).as_posix()}", abs_src_path=str(path)
                )
            )
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Removes what only tests read, and makes links of the repository links of the site."""
    source = Path(page.file.abs_src_path)
    markdown = markdown.replace("<!-- certificates -->", certificates()).replace(
        "<!-- board -->", board()
    )

    def prose(text: str) -> str:
        return _LINK.sub(
            lambda found: link(found[1], source, page.file.src_uri, config["extra"]["repository"]),
            _COMMENT.sub("", text),
        )

    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [prose(markdown[end : fence.start()]), shown(*fence.groups())]
        end = fence.end()
    return "".join([*parts, prose(markdown[end:])])


def certificates() -> str:
    """A table of what ``cargo xtask certify`` found, a row for each environment and set of
    arguments.
    """
    rows = [
        "| environment | steps | episodes | values | differing | largest difference | arguments |",
        "|---|--:|--:|--:|--:|---|---|",
    ]
    compared_with: dict[str, set[str]] = {}
    for path in sorted((DOCS / "certificates").glob("*.json")):
        found = json.loads(path.read_text())
        for name, version in found["versions"].items():
            compared_with.setdefault(name, set()).add(version)
        for run in found["runs"]:
            arguments = ", ".join(f"`{name}={value!r}`" for name, value in run["arguments"].items())
            reason = found["tolerance"]["reason"]
            largest = f"{run['largest_difference']['ulps']} ulp" + (
                f": {reason}" if reason and run["differing"] else ""
            )
            name = f"[{found['environment']}](certificates/{path.name})"
            figures = (
                f"{run[figure]:,}" for figure in ("steps", "episodes", "values", "differing")
            )
            rows.append(f"| {' | '.join([name, *figures, largest, arguments])} |")
    versions = ", ".join(
        f"{name} {' and '.join(sorted(found))}" for name, found in compared_with.items()
    )
    return "\n".join([*rows, "", f"Versions: {versions}."])


def board() -> str:
    """Tables of what ``cargo xtask board`` found."""
    sys.path.insert(0, str(ROOT / "python"))
    from board import rows

    return rows.table(json.loads(rows.ROWS.read_text()))


def shown(fence: str, kind: str, code: str) -> str:
    """A fenced block without its marks for tests, such as ``no_run``, and without the lines that
    rustdoc hides.
    """
    language = kind.partition(",")[0].strip()
    if language == "rust":
        code = re.sub(r"^ *#( .*)?\n", "", code, flags=re.MULTILINE)
    return f"{fence}{language}\n{code}{fence}"


def link(target: str, source: Path, page: str, repository: str) -> str:
    """The ``target`` of a link in the file ``source``, as a link of the ``page`` that it became."""
    path, _, anchor = target.partition("#")
    if not path or urlsplit(target).scheme:
        return target
    found = (source.parent / path).resolve()
    if not found.exists() or not found.is_relative_to(ROOT):
        return target
    name = found.relative_to(ROOT).as_posix()
    if name in INCLUDED:
        inside = INCLUDED[name]
    elif found.is_relative_to(DOCS) and found.is_file():
        inside = found.relative_to(DOCS).as_posix()
    else:
        return f"{repository}/{'tree' if found.is_dir() else 'blob'}/main/{name}" + (
            f"#{anchor}" if anchor else ""
        )
    return posixpath.relpath(inside, posixpath.dirname(page) or ".") + (
        f"#{anchor}" if anchor else ""
    )


class _Links(HTMLParser):
    """Collects what a page links to and loads, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(errors="replace"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src") and value:
                (self.targets if tag == "a" else self.loads).append(value)


def on_post_build(config: Any) -> None:
    """Warns of links to files and anchors that the site does not have, and of what is loaded from
    elsewhere. ``rustdoc`` has checked its own pages.
    """
    site = Path(config["site_dir"]).resolve()
    read = functools.cache(_Links)
    for path in sorted(site.rglob("*.html")):
        # The page for addresses that lead nowhere is served at any depth.
        if path.is_relative_to(site / "rust") or path.name == "404.html":
            continue
        for target in (*read(path).targets, *read(path).loads):
            url = urlsplit(target)
            if url.netloc and target in read(path).loads:
                log.warning("%s: loads %s from elsewhere", path.relative_to(site), target)
            if url.scheme or url.netloc:
                continue
            to = (path.parent / unquote(url.path)).resolve() if url.path else path
            to = to / "index.html" if to.is_dir() else to
            if not to.is_file():
                log.warning("%s: dead link %s", path.relative_to(site), target)
            elif (
                url.fragment
                and to.suffix == ".html"
                and unquote(url.fragment) not in read(to).anchors
            ):
                log.warning("%s: no such anchor %s", path.relative_to(site), target)
