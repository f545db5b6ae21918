from __future__ import annotations

from typing import Any

from windrow import _windrow


class MultiStep:
    """Rewards of several steps as one, for ``postproc`` of collectors: the target of a step is what follows ``n_steps`` later.

    ``("next", "reward")`` becomes the discounted sum of ``n_steps`` rewards, fewer at the end of an episode or of the batch;
    what it was is ``("next", "original_reward")``. All else under ``"next"`` but the flags is taken from as many steps ahead.
    ``"steps_to_next_obs"``, ``"gamma"``, ``"nonterminal"`` and ``"next_obs_terminated"`` tell how far that was.

    Args:
        gamma: discount, above 0 and at most 1.
        n_steps: steps, at least 1.

    Raises:
        ValueError: one of them is outside.
    """

    def __init__(self, gamma: float, n_steps: int) -> None:
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must be above 0 and at most 1, got {gamma}")
        if n_steps < 1:
            raise ValueError(f"n_steps must be at least 1, got {n_steps}")
        self.gamma, self.n_steps = gamma, n_steps

    def __call__(self, batch: Any) -> Any:
        """What ``batch`` becomes; it stays as it is itself."""
        return _windrow.multi_step(batch, self.gamma, self.n_steps)


def split_trajectories(batch: Any) -> Any:
    """A row for every piece of a trajectory in ``batch``, padded with zeros, with ``("collector", "mask")``.

    Pieces are told apart by ``("collector", "traj_ids")``, or else by ``("next", "done")``.

    Raises:
        ValueError: the batch has neither.
    """
    return _windrow.split_trajectories(batch)
