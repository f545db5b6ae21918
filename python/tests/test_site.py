"""The site: what its page of errors must have, and how it looks in a browser."""

from __future__ import annotations

import functools
import http.server
import importlib
import json
import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import windrow
import windrow._windrow as engine
from windrow.data.replay_buffers import samplers

PROJECT = Path(__file__).parents[2]
ERRORS = (PROJECT / "docs" / "errors.md").read_text()
#: Where `cargo xtask docs` builds it.
SITE = PROJECT / "target" / "site"
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
#: Of a telephone and of a desk, in pixels.
WIDTHS = (390, 1280)


# Errors


def exceptions() -> set[type]:
    """The public classes of warnings and errors."""
    found: set[type] = {
        kind
        for kind in vars(engine).values()
        if isinstance(kind, type) and issubclass(kind, BaseException)
    }
    left = [windrow.Warning]
    while left:
        found.add(kind := left.pop())
        left += kind.__subclasses__()
    return {kind for kind in found if not kind.__name__.startswith("_")}


def test_the_page_of_errors_has_every_class_of_python() -> None:
    assert {windrow.Warning, windrow.WorkerError} < exceptions()
    for kind in exceptions():
        assert getattr(windrow, kind.__name__) is kind, (
            f"{kind} says that it is in {kind.__module__}"
        )
        assert f"`windrow.{kind.__name__}`" in ERRORS


def variants() -> dict[str, list[str]]:
    """The variants of each public enum of errors of the crate ``windrow``."""
    public = set(
        re.findall(
            r"\w+",
            "".join(
                re.findall(r"pub use [^;]*;", (PROJECT / "crates/windrow/src/lib.rs").read_text())
            ),
        )
    )
    found = {}
    for path in sorted((PROJECT / "crates").glob("*/src/**/*.rs")):
        for name, body in re.findall(
            r"^pub enum (\w+) \{\n(.*?)^\}", path.read_text(), re.MULTILINE | re.DOTALL
        ):
            if name in public and re.search(
                r"(Error|ErrorKind|FaultKind|Fault|Misfit|Shortage|LimiterWait)$", name
            ):
                found[name] = re.findall(r"^    ([A-Z]\w*)", body, re.MULTILINE)
    return found


def test_the_page_of_errors_has_every_variant_of_rust() -> None:
    assert len(variants()) > 20 and "NoWorkerMain" in variants()["BuildError"]
    sections = ERRORS.split("\n### ")
    for name, own in variants().items():
        about = "".join(section for section in sections if re.search(rf"`{name}(`|::)", section))
        missing = [variant for variant in own if not re.search(rf"`({name}::)?{variant}`", about)]
        assert not missing, f"{name}: {missing}"


# Links


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_pages_that_others_name_are_there(name: str) -> None:
    named = set(re.findall(r"\]\((?!https?:)([^)#\s]+\.md)", (PROJECT / name).read_text()))
    assert named and {path for path in named if not (PROJECT / path).is_file()} == set()


# Tables


def test_the_table_of_parts_has_every_sampler() -> None:
    page = (PROJECT / "docs" / "replay.md").read_text().splitlines()
    row = next(line for line in page if line.startswith("| samplers |"))
    assert [name for name in samplers.__all__ if f"`{name}`" not in row] == []


# Reference


@pytest.mark.parametrize("room", ["collectors", "data", "envs", "modules", "vectors"])
def test_the_reference_has_every_public_name(room: str) -> None:
    page = SITE / "reference" / room / "index.html"
    if not page.exists():
        pytest.skip("the site was not built: cargo xtask docs")
    module, text = importlib.import_module(f"windrow.{room}"), page.read_text()
    public = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if is_public(name, value)
    ]
    assert len(public) > 1
    assert [
        name
        for name in public
        if f'id="windrow.{room}.{name}"' not in text and not re.search(rf">{name}\b", text)
    ] == []


def is_public(name: str, value: Any) -> bool:
    """Whether a module without ``__all__`` has ``value`` for its users."""
    return (
        isinstance(value, type)
        and value.__module__.startswith("windrow")
        and not name.startswith("_")
    )


# Looks


#: Answers of ``/measure.html``.
MEASURED: queue.Queue[list[str]] = queue.Queue()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the site is served, beside ``/measure.html``, which sends what pages are wider than a
    window.
    """
    if BROWSER is None:
        pytest.skip("no browser is installed")
    if not (SITE / "index.html").exists():
        pytest.skip("the site was not built: cargo xtask docs")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/measure.html":
                return super().do_GET()
            body = (
                _MEASURE.replace("PAGES", json.dumps(built()))
                .replace("WIDTHS", json.dumps(WIDTHS))
                .encode()
            )
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            MEASURED.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(SITE))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def built() -> list[str]:
    """All pages of the site but those of rustdoc."""
    return [
        path.relative_to(SITE).as_posix()
        for path in sorted(SITE.rglob("index.html"))
        if SITE / "rust" not in path.parents
    ]


#: Loads one page after the other in a frame of each width.
_MEASURE = """<!doctype html><body><script>
(async () => {
  const wide = [];
  for (const width of WIDTHS) for (const page of PAGES) {
    const frame = document.createElement("iframe");
    frame.width = width; frame.height = 800; frame.src = "/" + page;
    await new Promise(done => { frame.onload = done; document.body.append(frame); });
    const needed = frame.contentDocument.documentElement.scrollWidth;
    if (needed > width) wide.push(`${page} needs ${needed} of ${width} pixels`);
    frame.remove();
  }
  fetch("/", { method: "POST", body: JSON.stringify(wide) });
})();
</script></body>"""


def browser(folder: Path, *arguments: str) -> list[str]:
    """The command of a browser without a window."""
    assert BROWSER is not None
    return [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
        *arguments,
    ]


def test_no_page_is_wider_than_its_window(address: str, tmp_path: Path) -> None:
    assert len(built()) > 20
    command = browser(tmp_path, "--remote-debugging-port=0", f"{address}/measure.html")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert MEASURED.get(timeout=240) == []
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_start_page_shows_its_picture_and_the_first_run(
    address: str, width: int, tmp_path: Path
) -> None:
    path = tmp_path / "start.png"
    command = browser(
        tmp_path, f"--window-size={width},1000", f"--screenshot={path}", f"{address}/index.html"
    )
    subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=240, check=True
    )
    picture = Image.open(path).convert("RGB")
    assert picture.size == (width, 1000)
    colours = {colour: count for count, colour in picture.getcolors(1 << 24) or ()}
    # The head's colour, which the button has too, and that of the picture's ground.
    assert colours.get((0, 148, 133), 0) > 40 * width
    assert colours.get((244, 248, 247), 0) > 50 * width
