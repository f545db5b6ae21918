"""What is stored is what was given at the time of the call, whatever becomes of its tensors while
the write waits.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from waiting import until
from windrow.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RateLimiter,
    ReplayBuffer,
    TensorDictMaxValueWriter,
)

STORAGES = [LazyTensorStorage, LazyMemmapStorage, ListStorage]


def frames(count: int, value: float = 0.0) -> TensorDict:
    return TensorDict(
        {
            "value": torch.full((count,), value),
            "flag": torch.ones(count, 1, dtype=torch.bool),
            "next": TensorDict({"reward": torch.full((count, 1), value)}, [count]),
        },
        [count],
    )


def full(storage: Any, **arguments: Any) -> ReplayBuffer:
    """A buffer whose limiter keeps the next write waiting for samples."""
    limiter = RateLimiter.sample_to_insert_ratio(1.0, min_size_to_sample=10, error_buffer=20.0)
    buffer = ReplayBuffer(
        storage=storage(1000), limiter=limiter, batch_size=10, sample_timeout=60.0, **arguments
    )
    buffer.extend(frames(30))
    return buffer


@pytest.fixture
def in_turn() -> Iterator[None]:
    """No thread takes the interpreter's lock away from another: it waits until that one lets go of
    it.
    """
    kept = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    yield
    sys.setswitchinterval(kept)


def is_within(thread: threading.Thread, call: str) -> bool:
    """Whether the thread is in this call of the engine, and has let go of the interpreter's lock,
    where threads run in turn.
    """
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and call in linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def extend(buffer: ReplayBuffer, given: TensorDict) -> None:
    buffer.extend(given)


def add(buffer: ReplayBuffer, given: TensorDict) -> None:
    for at in range(given.numel()):
        buffer.add(given[at])


DOORS = [(extend, "core.extend("), (add, "core.add(")]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(("write", "call"), DOORS, ids=["extend", "add"])
@pytest.mark.usefixtures("in_turn")
def test_a_write_that_waits_stores_what_was_given(
    write: Callable[..., None], call: str, storage: Any
) -> None:
    buffer = full(storage)
    # As many as one sample lets in, so that `add` waits with the first of them.
    given = frames(1 if write is add else 10, 1.0)
    writer = threading.Thread(target=write, args=(buffer, given))
    writer.start()
    until(lambda: is_within(writer, call))
    given["value"].fill_(777.0)
    given["next", "reward"].fill_(777.0)
    # What torch takes for a boolean, and Rust does not.
    given["flag"].view(torch.uint8).fill_(255)
    buffer.sample()
    writer.join()
    stored = buffer[30:]
    assert stored.numel() == given.numel()
    assert (stored["value"] == 1.0).all() and (stored["next", "reward"] == 1.0).all()
    assert (stored["flag"].view(torch.uint8) == 1).all()


@pytest.mark.parametrize(
    "arguments", [{}, {"writer": TensorDictMaxValueWriter()}], ids=["round robin", "max value"]
)
def test_a_write_of_a_background_stores_what_was_given(arguments: dict[str, Any]) -> None:
    buffer, given = full(LazyTensorStorage, **arguments), frames(10, 1.0)

    def given_up() -> bool:
        given["value"].fill_(777.0)
        given["next", "reward"].fill_(-777.0)
        buffer.sample()
        return False

    rows = buffer._write(given, given_up)
    assert (buffer[rows]["value"] == 1.0).all() and (buffer[rows]["next", "reward"] == 1.0).all()


def test_a_write_that_waits_for_nobody_takes_no_copy() -> None:
    """Of which there would be no room here."""
    resource = pytest.importorskip("resource")
    row = torch.zeros(1, 1 << 20, dtype=torch.uint8)
    given = TensorDict({"row": row.expand(1 << 12, -1)}, [1 << 12])
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert buffer.extend(given).numel() == 4
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (
        1 if sys.platform == "darwin" else 1024
    )
    assert grown < given["row"].numel() // 8


@pytest.mark.parametrize("storage", STORAGES)
def test_bytes_that_are_no_booleans_are_stored_as_such(storage: Any) -> None:
    buffer = ReplayBuffer(storage=storage(20))
    strange = frames(3)
    strange["flag"] = torch.tensor([[0], [2], [255]], dtype=torch.uint8).view(torch.bool)
    buffer.extend(strange)
    assert buffer[:]["flag"].view(torch.uint8).flatten().tolist() == [0, 1, 1]
    buffer[0:2] = strange[1:]
    assert buffer[:]["flag"].view(torch.uint8).flatten().tolist() == [1, 1, 1]
    buffer.add(strange[2])
    assert buffer[3]["flag"].view(torch.uint8).tolist() == [1]


@pytest.mark.parametrize("storage", STORAGES)
def test_threads_that_write_and_save_at_once_wait_for_each_other(
    storage: Any, tmp_path: Path
) -> None:
    buffer = ReplayBuffer(storage=storage(200), batch_size=10)
    buffer.extend(frames(100))
    state = buffer.state_dict()
    wrong: list[Any] = []

    def run(work: Callable[[int], Any]) -> Callable[[], None]:
        def repeated() -> None:
            try:
                for turn in range(30):
                    work(turn)
            except BaseException as error:
                wrong.append(error)

        return repeated

    def look() -> None:
        sample = buffer.sample()
        if not torch.equal(sample["value"], sample["next", "reward"].squeeze(-1)):
            wrong.append(sample)

    works: list[Callable[[int], Any]] = [
        lambda turn: buffer.extend(frames(40, float(turn))),
        lambda turn: buffer.add(frames(1, float(turn))[0]),
        lambda turn: buffer.__setitem__(slice(0, 50), frames(50, float(turn))),
        lambda turn: buffer.load_state_dict(state),
        lambda turn: buffer.dumps(tmp_path / "checkpoint"),
        lambda turn: buffer.state_dict(),
        lambda turn: look(),
    ]
    threads = [threading.Thread(target=run(work)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
