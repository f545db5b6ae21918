"""The examples in docstrings and the snippets of the README and the site run as they stand."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest

import pages
import windrow
from windrow.collectors import BaseCollector, Evaluator
from windrow.envs import Transform


def with_examples() -> list[str]:
    """Modules of windrow that have one; those of the stand-in for torchrl have none."""
    names = [
        module.name
        for module in pkgutil.walk_packages(windrow.__path__, "windrow.", onerror=lambda _: None)
    ]
    specs = {
        name: importlib.util.find_spec(name)
        for name in names
        if not name.startswith("windrow.torchrl")
    }
    sources = {
        name: spec.origin
        for name, spec in specs.items()
        if spec and str(spec.origin).endswith(".py")
    }
    return sorted(name for name, path in sources.items() if ">>> " in Path(path).read_text())


def transforms() -> list[type]:
    """The transforms of windrow."""
    found = [getattr(windrow.envs, name) for name in windrow.envs.__all__]
    kinds = [kind for kind in found if isinstance(kind, type)]
    return [kind for kind in kinds if issubclass(kind, Transform) and kind is not Transform]


@pytest.mark.parametrize("kind", transforms())
def test_a_transform_has_an_example(kind: type) -> None:
    assert ">>> " in (vars(kind)["__doc__"] or "")


@pytest.mark.parametrize("name", with_examples())
def test_the_examples_of_a_module_print_what_they_say(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.attempted and not result.failed


@pytest.mark.parametrize(
    "page", [page for page in pages.PAGES if pages.blocks(page)], ids=lambda page: page.stem
)
def test_the_snippets_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for left in pages.run(page, whole=False).values():
        if isinstance(left, (BaseCollector, Evaluator)):
            left.shutdown()


def test_a_page_that_prints_something_else_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    shown = (
        "<!-- in tests: 3 is 2 -->\n```python\nprint(3, object())\n```\n```text,printed\n{}\n```\n"
    )
    page.write_text(shown.format("2 <object ...>"))
    pages.run(page, whole=False)
    page.write_text(shown.format("3 <object ...>"))
    with pytest.raises(AssertionError, match="expected\\n3 <object"):
        pages.run(page, whole=False)


def test_rustdoc_compiles_all_pages_with_rust() -> None:
    compiled = re.findall(
        r'include_str!\("([^"]+)"\)', (pages.PROJECT / "crates/windrow/src/lib.rs").read_text()
    )
    of_pages = {(pages.PROJECT / "crates/windrow/src" / path).resolve() for path in compiled}
    assert of_pages == {page for page in pages.PAGES if "```rust" in page.read_text()}
