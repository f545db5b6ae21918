"""The state of a policy changes in every way that a program has, below every class of collector:
each action is one that the policy computes with the state that it had, called or evaluated in Rust,
or an error names what cannot be followed. And what a policy does beside computing is done.

``cargo xtask stale --count N`` runs this.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings

import torch

from policies import random_modules
from stale import effects, forms_of_code, forms_of_data, forms_of_modules
from stale.forms import FORMS
from stale.lives import Cell, Sum, cells, live

#: Changes in the life of one collector.
CHANGES = 3
#: Random modules of floats in a whole run.
MODULES = 1000
#: Violations that are shown.
SHOWN = 40

assert forms_of_code and forms_of_data and forms_of_modules


def run(count: int, seed: int, seconds: float, wanted: str) -> Sum:
    """Runs collectors of all cells in an order drawn by ``seed``, until ``count`` changes were made
    and checked, or time is over.
    """
    total, end = Sum(), time.monotonic() + seconds
    drawn = random.Random(seed)
    all_cells = [cell for cell in cells(FORMS) if wanted in str(cell)]
    while True:
        for cell in _ordered(all_cells, drawn):
            if total.changes >= count or time.monotonic() > end:
                return total
            live(cell, total, CHANGES)


def _ordered(all_cells: list[Cell], drawn: random.Random) -> list[Cell]:
    """``all_cells`` in a random order in which no form comes again before all others have come."""
    by_form: dict[str, list[Cell]] = {}
    for cell in drawn.sample(all_cells, len(all_cells)):
        by_form.setdefault(cell.form.name, []).append(cell)
    longest = max(map(len, by_form.values()), default=0)
    return [
        found[turn] for turn in range(longest) for found in by_form.values() if turn < len(found)
    ]


def main() -> int:
    """Says what came of it; 1 if an action was wrong."""
    parser = argparse.ArgumentParser(
        prog="cargo xtask stale",
        description="Changes the state of policies, and checks each action.",
    )
    parser.add_argument(
        "--count", type=int, default=2000, help="changes of state; 2000 unless given"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=None,
        help="of the order in which forms and collectors come; drawn unless given",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="end after so many seconds, however many changes were made",
    )
    parser.add_argument("--only", default="", help="only those whose description has this text")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # Where time is short, most of it is for state.
    total = run(options.count, seed, 0.75 * options.seconds, options.only)
    acted = effects.run(random.Random(seed), 0.25 * options.seconds)
    print(
        f"{total.changes} changes, {total.rows} rows checked, {len(total.forms)} forms; "
        f"evaluated in Rust: {total.followed['native']} followed, {total.refused['native']} refused; "
        f"called: {total.followed['called']} followed, {total.refused['called']} refused; {len(total.uncopied)} forms cannot be copied; "
        f"{total.stale} stale, {total.torn} torn, {total.other} other violations"
    )
    print(
        f"effects: {acted.policies} policies of {len(acted.forms)} forms do something beside computing, {len(acted.lost)} lose it"
    )
    for violation in [*total.violations, *(f"lost: {lost}" for lost in acted.lost)][:SHOWN]:
        print(f"violation: {violation}")
    wrong = bool(total.violations or acted.lost or not total.changes or not acted.policies)
    if options.seconds == float("inf"):
        wrong = bool(_compare_modules(seed)) or wrong
    return int(wrong)


def _compare_modules(seed: int) -> list[str]:
    """Compares operations of integers and random modules of floats with torch; returns what is
    wrong. The tests do so with fewer.
    """
    integers, floats = random_modules.run_integers(), random_modules.run_floats(MODULES, seed)
    # Modules that magnify rounding are apart from torch, as torch is from float64: they are counted
    # alone.
    print(
        f"modules: operations of integers {dict(integers.kinds)}, modules of floats {dict(floats.kinds)}"
    )
    for wrong in integers.bad[:SHOWN]:
        print(f"violation: integers: {wrong}")
    return integers.bad


if __name__ == "__main__":
    sys.exit(main())
