"""The public classes are what programs rely on."""

from __future__ import annotations

from pathlib import Path

import public_classes


def test_public_classes_have_the_arguments_modules_and_pickles_that_are_written_down() -> None:
    written = Path(__file__).with_name("public_classes.txt").read_text().splitlines()
    assert list(public_classes.lines()) == written
