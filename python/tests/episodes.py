"""Episodes that tests of data sets write, and what they find."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from windrow.data import ReplayBuffer

IDS, DONE, TRUNCATED = ("collector", "traj_ids"), ("next", "done"), ("next", "truncated")


def steps(lengths: list[int], *, ids: bool = True, ends: bool = True, first: int = 0) -> TensorDict:
    """A batch ``[time]`` of episodes of these lengths, whose observations are ``[episode, step]``.
    The last one may not end.
    """
    episode = torch.repeat_interleave(
        torch.arange(first, first + len(lengths)), torch.tensor(lengths)
    )
    step = torch.cat([torch.arange(length) for length in lengths])
    done = torch.cat([step[1:] == 0, torch.tensor([ends])])[:, None]
    batch = TensorDict(
        {"observation": torch.stack([episode, step], 1).float(), "next": {"done": done}},
        [len(step)],
    )
    batch[TRUNCATED], batch["next", "reward"] = torch.zeros_like(done), step[:, None].float()
    if ids:
        batch[IDS] = episode
    return batch


def frames(path: Any) -> Any:
    """All frames of a data set, of which it checks that episodes are whole and numbered in their
    order.
    """
    found = ReplayBuffer.from_dataset(path)[:]
    ends = found[DONE][:, 0].nonzero()[:, 0]
    assert found[DONE][-1], "the last episode is torn"
    begins = torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1] + 1])
    expected = torch.repeat_interleave(torch.arange(len(ends)), ends - begins + 1)
    assert torch.equal(found[IDS], expected)
    return found


def by_content(found: Any) -> list[tuple[float, ...]]:
    """The frames, but for ids and flags that a sink may change, in an order of their own."""
    rows = [
        found[key].double().reshape(len(found), -1)
        for key in ("observation", "action", ("next", "observation"), ("next", "reward"))
    ]
    return sorted(map(tuple, torch.cat(rows, 1).tolist()))
