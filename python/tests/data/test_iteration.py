"""Loops over buffers end as those of TorchRL do."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
import torchrl.data
from tensordict import TensorDict

import windrow.data

LIBRARIES = [torchrl.data, windrow.data]


def frames(count: int, start: int = 0) -> TensorDict:
    number = torch.arange(start, start + count)
    return TensorDict(
        {"number": number, "episode": number // 5, "next": {"done": (number % 5 == 4)[:, None]}},
        [count],
    )


def buffer_of(library: Any, sampler: Any, batch_size: int | None = 20, storage: int = 100) -> Any:
    return library.ReplayBuffer(
        storage=library.LazyTensorStorage(storage), sampler=sampler, batch_size=batch_size
    )


def both(run: Any) -> Any:
    """What ``run`` gives for either library, which must be the same."""
    of_torchrl, of_windrow = [run(library) for library in LIBRARIES]
    assert of_windrow == of_torchrl
    return of_windrow


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [20, 20, 10]), (True, [20, 20])])
def test_a_loop_is_one_pass(shuffle: bool, drop_last: bool, sizes: list[int]) -> None:
    def run(library: Any) -> Any:
        buffer = buffer_of(
            library, library.SamplerWithoutReplacement(drop_last=drop_last, shuffle=shuffle)
        )
        buffer.extend(frames(50))
        passes = [[batch["number"] for batch in islice(buffer, 20)] for _ in range(2)]
        for batches in passes:
            assert len(set(torch.cat(batches).tolist())) == sum(map(len, batches))
        return [[len(batch) for batch in batches] for batches in passes]

    assert both(run) == [sizes, sizes]


def test_a_loop_that_is_left_is_gone_on_with() -> None:
    def run(library: Any) -> Any:
        buffer = buffer_of(library, library.SamplerWithoutReplacement(shuffle=False))
        buffer.extend(frames(50))
        seen = []
        for batch in buffer:
            seen.append(batch["number"].tolist())
            break
        return seen, [batch["number"].tolist() for batch in islice(buffer, 20)]

    assert both(run)[1] == [list(range(20, 40)), list(range(40, 50))]


def test_every_pass_is_over_all_frames() -> None:
    def run(library: Any) -> Any:
        buffer = buffer_of(library, library.SamplerWithoutReplacement())
        seen = []
        for start in (0, 50, 100):
            buffer.extend(frames(50, start))
            seen.append(
                sorted(torch.cat([batch["number"] for batch in islice(buffer, 20)]).tolist())
            )
        return seen

    assert both(run) == [list(range(50)), list(range(100)), list(range(50, 150))]


def test_a_loop_over_slices_is_one_pass() -> None:
    def run(library: Any) -> Any:
        sampler = library.SliceSamplerWithoutReplacement(slice_len=5, traj_key="episode")
        buffer = buffer_of(library, sampler)
        buffer.extend(frames(50))
        passes = [[batch["episode"][::5] for batch in islice(buffer, 20)] for _ in range(2)]
        return [
            ([len(batch) for batch in batches], sorted(torch.cat(batches).tolist()))
            for batches in passes
        ]

    assert both(run) == [([4, 4, 2], list(range(10)))] * 2


def test_with_replacement_there_is_no_end() -> None:
    def run(library: Any) -> Any:
        buffer = buffer_of(library, library.RandomSampler())
        buffer.extend(frames(50))
        return len(list(islice(buffer, 30)))

    assert both(run) == 30


def test_next_tells_the_end_of_a_pass_with_none() -> None:
    def run(library: Any) -> Any:
        buffer = library.TensorDictReplayBuffer(
            storage=library.LazyTensorStorage(100),
            sampler=library.SamplerWithoutReplacement(),
            batch_size=20,
        )
        buffer.extend(frames(50))
        return [
            None if batch is None else len(batch) for batch in (buffer.next() for _ in range(6))
        ]

    assert both(run) == [20, 20, 10, None, 20, 20]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_loop_needs_a_batch_size_and_frames(library: Any) -> None:
    with pytest.raises(RuntimeError, match="(?i)batch.size"):
        next(iter(buffer_of(library, library.RandomSampler(), batch_size=None)))
    with pytest.raises(RuntimeError, match="empty"):
        next(iter(buffer_of(library, library.SamplerWithoutReplacement())))
