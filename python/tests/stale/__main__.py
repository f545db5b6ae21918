"""The state of a policy changes in every way that a program has, below every class of collector:
each action is one that the policy computes with the state that it had, called or evaluated in Rust,
or an error names what cannot be followed. What a policy does beside computing is done. And what it
does by the number of its rows, it does for that number.

``cargo xtask stale --count N`` runs this.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
from concurrent.futures import ProcessPoolExecutor

from policies import random_modules
from stale.forms import FORMS
from stale.lives import Sum
from stale.runs import PARTS, by_rows, run, with_effects

#: Processes that run side by side.
PROCESSES = 2
#: Random modules of floats in a whole run.
MODULES = 1000
#: Violations that are shown.
SHOWN = 40


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
    parser.add_argument(
        "--without-captures",
        action="store_true",
        help="no policy is captured by torch: those that no list has are called",
    )
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        parts = [pool.submit(run, options, seed, part) for part in range(PARTS)]
        others = pool.submit(with_effects, options, seed), pool.submit(by_rows, options, seed)
        total = Sum()
        for part in parts:
            total.add(part.result())
        acted, counted = others[0].result(), others[1].result()
    lives = ", ".join(f"{count} {how}" for how, count in total.lives.items())
    print(
        f"{total.changes} changes, {total.rows} rows checked, {len(total.forms)} of {len(FORMS)} forms; lives: {lives}; "
        f"{len(total.uncopied)} forms cannot be copied; {total.stale} stale, {total.torn} torn, {total.first} wrong from the first row, "
        f"{total.other} other violations"
    )
    print(
        f"effects: {acted.policies} policies of {len(acted.forms)} forms do something beside computing, {len(acted.lost)} lose it"
    )
    print(
        f"rows: {counted.cells} policies of {len(counted.forms)} forms, {counted.native} in Rust, {len(counted.wrong)} wrong"
    )
    for violation in [*total.violations, *(f"lost: {lost}" for lost in acted.lost), *counted.wrong][
        :SHOWN
    ]:
        print(f"violation: {violation}")
    wrong = bool(total.violations or acted.lost or counted.wrong or not total.changes)
    if options.seconds == float("inf") and not options.only:
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
