"""What one process of the program runs: collectors of a part of the forms, and policies with side
effects.
"""

from __future__ import annotations

import argparse
import importlib
import random
import time
import warnings
from collections.abc import Iterator

import torch

from stale import (
    effects,
    forms_of_classes,
    forms_of_code,
    forms_of_data,
    forms_of_layers,
    forms_of_libraries,
    forms_of_modules,
    forms_of_objects,
    forms_of_process,
    forms_of_reads,
    forms_of_weights,
    rows,
    writes,
)
from stale.forms import FORMS
from stale.lives import Cell, Sum, cells, contradiction, live

#: Changes in the life of one collector; one where each form comes for the first time.
CHANGES = 3
#: Parts of the forms, which the processes take in turn.
PARTS = 4
#: Modules that have forms of state, and of side effects.
KINDS = (
    forms_of_classes,
    forms_of_code,
    forms_of_data,
    forms_of_layers,
    forms_of_libraries,
    forms_of_modules,
    forms_of_objects,
    forms_of_process,
    forms_of_reads,
    forms_of_weights,
    writes,
)


def run(options: argparse.Namespace, seed: int, part: int) -> Sum:
    """Runs a collector of each form of one of ``PARTS`` parts, and then others until its share of
    the changes was made and checked, or time is over.
    """
    prepare(options)
    total, drawn = Sum(), random.Random(f"{seed} {part}")
    count, end = options.count / PARTS, time.monotonic() + options.seconds
    all_cells = [cell for cell in cells(FORMS) if options.only in str(cell)]
    by_form: dict[str, list[Cell]] = {}
    for cell in drawn.sample(all_cells, len(all_cells)):
        by_form.setdefault(cell.form.name, []).append(cell)
    mine = {name: by_form[name] for name in [*FORMS][part::PARTS] if name in by_form}
    for cell in _paired({name: mine[name] for name in drawn.sample([*mine], len(mine))}):
        if total.changes >= count:
            return total
        _first(cell, mine[cell.form.name], total)
    for cell in _in_turn(mine):
        if total.changes >= count or time.monotonic() > end:
            return total
        live(cell, total, CHANGES)
    return total


def _first(cell: Cell, found: list[Cell], total: Sum) -> None:
    """Runs a form for the first time: where it cannot be copied, in the calling thread as well."""
    if (wrong := contradiction(cell.form, CHANGES)) is not None:
        total.other += 1
        total.violations.append(f"other: {wrong}")
        return
    live(cell, total, 1)
    if cell.is_copied and cell.form.name in total.uncopied:
        inline = next(one for one in found if not one.is_copied and one.backend == "auto")
        live(inline, total, 1)


def with_effects(options: argparse.Namespace, seed: int) -> effects.Effects:
    """Runs policies with side effects."""
    prepare(options)
    return effects.run(random.Random(f"{seed} effects"), options.seconds / 2, options.only)


def by_rows(options: argparse.Namespace, seed: int) -> rows.Counts:
    """Runs policies that act by their number of rows."""
    prepare(options)
    return rows.run(random.Random(f"{seed} rows"), options.seconds / 2, options.only)


def prepare(options: argparse.Namespace) -> None:
    """Sets what holds in a process that runs a part."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.without_captures:
        without_captures()


def _paired(by_form: dict[str, list[Cell]]) -> list[Cell]:
    """A cell of each form, such that as many pairs as possible come: of a kind of form and a class,
    of a class and where it acts, and so on.
    """
    met: set[object] = set()
    chosen = []
    for found in by_form.values():
        # Whoever cannot be evaluated in Rust is called by itself.
        best = max(
            found,
            key=lambda cell: (cell.backend == "auto", len(cell.pairs - met), -cell.cost),
        )
        met |= best.pairs
        chosen.append(best)
    return chosen


def _in_turn(by_form: dict[str, list[Cell]]) -> Iterator[Cell]:
    """All cells, such that no form comes again before all others have come."""
    longest = max(map(len, by_form.values()), default=0)
    for turn in range(longest):
        for found in by_form.values():
            if turn < len(found):
                yield found[turn]


def without_captures() -> None:
    """Leaves policies whose state only torch can follow to torch."""
    for name in ("windrow.policies.capture", "windrow.policies.lower.capture"):
        try:
            importlib.import_module(name).ENABLED = False
        except ModuleNotFoundError:
            continue
        return
    print("violation: there is nothing to switch off")
