from __future__ import annotations

from windrow import _windrow
from windrow._keys import short
from windrow._lazy import tensordict, torch
from windrow._numbers import whole
from windrow._values import unheld
from windrow.data._part import Key

__all__ = ["MultiStep", "split_trajectories"]

IDS, MASK, DONE = ("collector", "traj_ids"), ("collector", "mask"), ("next", "done")


class MultiStep:
    """Rewards of several steps as one, for ``postproc`` of collectors: the target of a step lies
    ``n_steps`` steps ahead.

    ``("next", "reward")`` becomes the discounted sum of ``n_steps`` rewards, fewer at the end of an
    episode or of the batch; the reward itself moves to ``("next", "original_reward")``. All other
    entries under ``"next"`` but the flags come from as many steps ahead. ``"steps_to_next_obs"``,
    ``"gamma"`` and ``"nonterminal"``, ``[..., time]``, and ``"next_obs_terminated"`` say how many
    steps that were.

    Args:
        gamma: discount, above 0 and at most 1.
        n_steps: steps, at least 1.

    Raises:
        ValueError: one of them is outside.

    Example:
        >>> from windrow.collectors import Collector
        >>> from windrow.data import MultiStep
        >>> collector = Collector("CartPole-v1", frames_per_batch=100, total_frames=100, postproc=MultiStep(gamma=0.99, n_steps=3))
        >>> next(collector)["next", "reward"].max()
        tensor(2.9701)
    """

    def __init__(self, gamma: float, n_steps: int) -> None:
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must be above 0 and at most 1, got {gamma}")
        self.gamma, self.n_steps = gamma, whole("n_steps", n_steps, 1)

    def __call__(self, batch: tensordict.TensorDictBase) -> tensordict.TensorDictBase:
        """A copy of ``batch`` with these rewards."""
        result = _on_device_of(batch, _windrow.multi_step(batch, self.gamma, self.n_steps))
        result.names = batch.names
        return result

    def to(self, *where: object, **how: object) -> MultiStep:
        """Itself: it has no tensors to be moved."""
        return self


def split_trajectories(
    batch: tensordict.TensorDictBase,
    *,
    prefix: str | None = None,
    trajectory_key: Key | None = None,
    done_key: str | None = None,
    as_nested: bool | torch.layout = False,
) -> tensordict.TensorDictBase:
    """A row for every piece of a trajectory in ``batch``, padded with zeros, and a mask that is
    true where there is a frame.

    Args:
        batch: a TensorDict ``[..., time]``.
        prefix: the entry that holds ``"traj_ids"`` and gets ``"mask"``; by default ``"collector"``
            if the batch has it, and otherwise the batch itself.
        trajectory_key: the ids that tell pieces apart, if they have another name; ``"mask"`` is
            added beside them.
        done_key: the entry under ``"next"`` that ends pieces of a batch without ids, which are then
            added; by default ``"done"``.
        as_nested: make rows of unequal length, ``[pieces, -1]``, of nested tensors, without padding
            and mask. A ``torch.layout`` chooses theirs.

    Raises:
        ValueError: the batch has neither ids nor such an entry.
    """
    if prefix is None and "collector" in batch.keys():
        prefix = "collector"
    ids_key: tuple[str, ...] = ("traj_ids",) if prefix is None else (prefix, "traj_ids")
    if trajectory_key is not None:
        ids_key = (trajectory_key,) if isinstance(trajectory_key, str) else trajectory_key
    mask_key = (*ids_key[:-1], "mask")
    flag_key = ("next", "done" if done_key is None else done_key)

    # The frames under one name, and beside them ids, mask and flag under the names that the engine
    # uses.
    told = tensordict.TensorDict({"frames": batch.exclude(mask_key)}, batch.batch_size)
    for its, here in [(IDS, ids_key), (MASK, mask_key), (DONE, flag_key)]:
        entry = batch.get(here, None)
        if entry is not None:
            told[its] = entry.long() if its == IDS else entry
    if IDS not in told.keys(True) and DONE not in told.keys(True):
        raise ValueError(
            f"expected the ids {ids_key} or the flag {flag_key}, the batch has neither"
        )
    split = _on_device_of(batch, _windrow.split_trajectories(told))
    frames = split["frames"]
    if batch.get(ids_key, None) is None:
        frames.set(ids_key, split[IDS])
    held = [short(names) for names, _ in unheld(frames)] if as_nested else []
    if held:
        raise ValueError(
            f"nested tensors cannot hold {', '.join(map(repr, held))}: leave as_nested out, or exclude them"
        )
    return (
        _nested(frames, split[MASK], as_nested) if as_nested else frames.set(mask_key, split[MASK])
    )


def _nested(
    padded: tensordict.TensorDictBase, mask: torch.Tensor, layout: bool | torch.layout
) -> tensordict.TensorDictBase:
    """Rows without their padding, as nested tensors."""
    lengths = mask.sum(-1).tolist()
    chosen = None if isinstance(layout, bool) else layout

    def nest(rows: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor(
            [row[:length] for row, length in zip(rows, lengths, strict=True)], layout=chosen
        )

    # Nested tensors of rows that are alike say how long these are.
    return padded.apply(
        nest, batch_size=[len(lengths), -1 if len(set(lengths)) > 1 else lengths[0]]
    )


def _on_device_of(
    batch: tensordict.TensorDictBase, result: tensordict.TensorDictBase
) -> tensordict.TensorDictBase:
    return result if batch.device is None else result.to(batch.device)
