"""Makes each fault behind each door, and prints the table: ``python -m doors``."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

from doors.environment import FAULTS
from doors.table import DOORS, THREADS, Cell, cell, silent

#: Seconds after which workers in threads are reported that hang, in place of 60.
SILENT = 1.0


def shown(found: Cell) -> str:
    """A cell as text."""
    return f"{found.noticed:.2f} s" if found.is_right and found.noticed is not None else "WRONG"


def main() -> int:
    """Prints the table; 1 where a cell is wrong."""
    warnings.simplefilter("ignore")
    count = wrong = 0
    head = ["door", "`on_loss`", *FAULTS]
    print("table:", " | ".join(["", *head, ""]).strip())
    print("table:", "|---" * len(head) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for door in DOORS:
            for on_loss in ("raise", 3):
                found = [cell(door, fault, on_loss, Path(folder)) for fault in FAULTS]  # type: ignore[arg-type]
                row = [f"`{door}`", f"`{on_loss!r}`".replace("'", '"'), *map(shown, found)]
                print("table:", " | ".join(["", *row, ""]).strip(), flush=True)
                for fault, one in zip(FAULTS, found, strict=True):
                    count += 1
                    if not one.is_right:
                        wrong += 1
                        print(f"violation: {door}, {fault}, on_loss={on_loss}: {one}", flush=True)
        head = [
            "in threads",
            *(f"raises, `{on_loss}`" for on_loss in ('"raise"', 3)),
            "hangs: a warning",
        ]
        print("table:", " | ".join(["", *head, ""]).strip())
        print("table:", "|---" * len(head) + "|")
        for door, made in THREADS.items():
            of = Path(folder, f"{door}-threads")
            found = [made("raises", on_loss, f"{of}-{on_loss}") for on_loss in ("raise", 3)]  # type: ignore[arg-type]
            # The calling thread waits for nobody.
            found += [silent(door, THREADS, f"{of}-silent", SILENT)] if door != "make_vec" else []
            row = [f"`{door}`", *map(shown, found), "" if len(found) == 3 else "–"]
            print("table:", " | ".join(["", *row[:4], ""]).strip(), flush=True)
            for one in found:
                count += 1
                if not one.is_right:
                    wrong += 1
                    print(f"violation: {door} in threads: {one}", flush=True)
    print(f"{count} faults, {wrong} violations")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
