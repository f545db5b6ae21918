"""Samples CartPole transitions by NumPy's fancy indexing: the other side of the bench `replay`.

Every line on standard input is a time in seconds; for each, a line on standard output says how many
frames a second were sampled in that time, in batches of 256 of a full buffer of 10**6 transitions.
"""

import sys
import time

import numpy as np

CAPACITY = 1_000_000
BATCH = 256


def main() -> None:
    rng = np.random.default_rng(0)
    fields = [
        rng.standard_normal((CAPACITY, 4), dtype=np.float32),
        rng.integers(0, 2, CAPACITY),
        rng.standard_normal((CAPACITY, 1), dtype=np.float32),
        rng.standard_normal((CAPACITY, 4), dtype=np.float32),
        rng.random((CAPACITY, 1)) < 0.05,
    ]
    for line in sys.stdin:
        limit = float(line)
        frames = 0
        start = time.perf_counter()
        while time.perf_counter() - start < limit:
            for _ in range(10):
                rows = rng.integers(0, CAPACITY, BATCH)
                batch = [field[rows] for field in fields]
                frames += len(batch[0])
        print(frames / (time.perf_counter() - start), flush=True)


main()
