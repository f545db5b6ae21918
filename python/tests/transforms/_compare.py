"""Compares transforms of windrow with TorchRL's of the same name, over the same random episodes,
and counts the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import torch
from torchrl.envs import GymWrapper as TheirGymWrapper, TransformedEnv as TheirTransformedEnv

from windrow.envs import GymWrapper, TransformedEnv

#: Values compared so far, by all tests of this process.
compared = 0


def assert_same(
    ours: Any, theirs: Any, *, but: Iterable[Any] = (), rtol: float = 0.0, atol: float = 0.0
) -> int:
    """Fails unless each entry of ``theirs`` is in ``ours`` with the same shape, dtype and values,
    and each of ``ours`` in ``theirs``.

    Args:
        but: keys that are left out; ``("next", key)`` is left out with ``key``.
        rtol: how far values may be apart, relative to TorchRL's; they are equal unless given.
        atol: the same, absolutely.

    Returns:
        How many values were compared.
    """
    global compared
    left_out = {key if isinstance(key, tuple) else (key,) for key in but}
    left_out |= {("next", *key) for key in left_out}

    def entries(td: Any) -> dict[tuple[str, ...], torch.Tensor]:
        pairs = td.items(include_nested=True, leaves_only=True)
        named = {key if isinstance(key, tuple) else (key,): value for key, value in pairs}
        return {key: value for key, value in named.items() if key not in left_out}

    got, expected = entries(ours), entries(theirs)
    assert got.keys() == expected.keys()
    count = 0
    for key, value in expected.items():
        torch.testing.assert_close(
            got[key],
            value,
            rtol=rtol,
            atol=atol,
            equal_nan=True,
            msg=lambda why, key=key: f"{key}: {why}",
        )
        count += value.numel()
    compared += count
    return count


def play(
    ours: Any, theirs: Any, worlds: Iterable[Any] = (), *, steps: int = 60, seed: int = 0
) -> tuple[Any, Any]:
    """Steps two environments with the same random actions, through the ends of episodes; the frames
    of each, ``[steps, ...]``.

    Args:
        worlds: environments of Gymnasium below the two, which are seeded alike.
    """
    for world in worlds:
        world.reset(seed=seed)
    torch.manual_seed(seed)
    roots = [ours.reset(), theirs.reset()]
    frames: list[list[Any]] = [[], []]
    for _ in range(steps):
        actions = theirs.rand_action(roots[1].clone()).select(*theirs.action_keys)
        for which, env in enumerate((ours, theirs)):
            frame, roots[which] = env.step_and_maybe_reset(roots[which].update(actions))
            frames[which].append(frame)
    mine, others = (torch.stack(each) for each in frames)
    return mine, others


def compare(
    ours: Any,
    theirs: Any,
    make: Callable[[], Any] = lambda: gymnasium.make("Pendulum-v1", max_episode_steps=17),
    *,
    but: Iterable[Any] = (),
    steps: int = 60,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> tuple[Any, Any]:
    """Puts windrow's transform ``ours`` and TorchRL's ``theirs`` around environments of Gymnasium
    that ``make`` makes, plays both and compares all frames; see :func:`assert_same`.

    Returns:
        The two environments, for more questions.
    """
    worlds = [make(), make()]
    mine = TransformedEnv(GymWrapper(worlds[0]), ours)
    others = TheirTransformedEnv(TheirGymWrapper(worlds[1]), theirs)
    assert_same(*play(mine, others, worlds, steps=steps), but=but, rtol=rtol, atol=atol)
    return mine, others
