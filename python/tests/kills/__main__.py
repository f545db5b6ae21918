"""Worker processes of Python collectors die at any moment, in every way and below every class: each
row that is delivered is still what its environment wrote, delivered once, in its order and
accounted for, and nothing is left behind.

``cargo xtask faults workers --python --kills N`` runs this: see docs/reliability.md.
"""

from __future__ import annotations

import argparse
import gc
import sys
from dataclasses import dataclass, field

import torch

from kills.life import RULES, Cell, Life, cells
from room import back_to, room

#: Most deaths in the life of a collector whose workers are replaced; fewer where there are not
#: enough for all cells.
DEATHS = 6
#: Violations that are shown.
SHOWN = 20


@dataclass
class Sum:
    """What came of all lives."""

    deaths: int = 0
    rows: int = 0
    collectors: int = 0
    orphans: int = 0
    segments: int = 0
    #: Newest version of weights that has acted in each life, over all.
    versions: int = 0
    noticed: list[float] = field(default_factory=list)
    met: set[tuple[str, ...]] = field(default_factory=set)
    #: How many lives had a rule, and how many of them ended with the error of a worker.
    lives: dict[str, list[int]] = field(default_factory=lambda: {rule: [0, 0] for rule in RULES})
    violations: list[str] = field(default_factory=list)

    def add(self, cell: Cell) -> None:
        """Runs a collector."""
        before = room()
        life = Life(cell).run()
        self.collectors += 1
        self.met.add((cell.kind, cell.use, cell.way, cell.rule))
        self.lives[cell.rule][0] += 1
        self.lives[cell.rule][1] += life.failed
        self.deaths += len(life.told)
        self.rows += life.books.rows
        self.versions += life.books.newest
        self.noticed += life.noticed
        self.violations += [f"{cell}: {violation}" for violation in life.books.violations]
        # Its batches are views of its memory.
        del life
        gc.collect()
        after = back_to(before)
        self.orphans += max(0, after["processes"] - before["processes"])
        self.segments += max(0, after["segments"] - before["segments"])
        if after != before:
            self.violations.append(f"{cell}: I6: {before} before, {after} after")

    def __str__(self) -> str:
        restart, raises, goes_on = (self.lives[rule] for rule in RULES)
        return (
            f"{self.deaths} kills, {self.rows} rows checked, {len(self.violations)} violations, noticed within "
            f"{self._quantile(0.5):.2f} ms (p50) and {self._quantile(0.99):.2f} ms (p99), {self.orphans} orphaned processes, "
            f"{self.segments} segments left; {self.collectors} collectors\n"
            f"cells: {len(self.met)} kinds; {restart[0]} collectors replaced workers, {raises[1]} of {raises[0]} ended with a loss, "
            f"{goes_on[1]} of {goes_on[0]} went on and ended with their last worker's; {self.versions} versions of weights acted"
        )

    def _quantile(self, share: float) -> float:
        ordered = sorted(self.noticed)
        return ordered[-int(-share * (len(ordered) - 1) // 1)] if ordered else 0.0


def run(kills: int) -> Sum:
    """Runs collectors of all cells in turn until so many workers have died."""
    total, all_cells = Sum(), len(cells(1))
    each = min(max(kills // all_cells, 1), DEATHS)
    # The first collector leaves what torch and the garbage collector keep.
    Life(next(cell for cell in cells(1) if cell.rule == "restart")).run()
    while total.deaths < kills:
        for cell in cells(each):
            if total.deaths >= kills and (len(total.met) == all_cells or kills < all_cells):
                break
            total.add(cell)
    return total


def main() -> int:
    """Says what came of it; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description="Lets worker processes die.")
    parser.add_argument(
        "--kills", type=int, default=50, help="how many workers are to die; 50 unless given"
    )
    torch.set_num_threads(1)
    # Threads that look for losses shall not wait for others of this program.
    sys.setswitchinterval(1e-4)
    total = run(parser.parse_args().kills)
    print(total)
    for violation in total.violations[:SHOWN]:
        print(f"violation: {violation}")
    return int(bool(total.violations))


if __name__ == "__main__":
    sys.exit(main())
