"""Losses of a vector's environments, beside others that do something else meanwhile."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import windrow


class Scripted(gymnasium.Env[Any, Any]):
    """Observes ``[seed of its reset or -1, step]``. Calls ``act`` with the mark, itself and its
    step.
    """

    observation_space = gymnasium.spaces.Box(-1, 2**32, (2,), np.float64)
    action_space: Any = gymnasium.spaces.Discrete(2)

    def __init__(self, mark: Path, act: Callable[[Path, Scripted], Any] | None = None) -> None:
        self.mark, self.act, self.seed, self.count = mark, act, -1, 0
        self.options: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seed, self.count, self.options = -1 if seed is None else seed, 0, options
        return np.array([self.seed, 0.0]), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        info = self.act(self.mark, self) if self.act else {}
        seen = np.array([self.seed, self.count], np.float64)
        return seen, 1.0, False, bool(info.pop("cut", False)), info

    def pid(self) -> int:
        return os.getpid()


class OfDictionaries(Scripted):
    action_space = gymnasium.spaces.Dict(move=gymnasium.spaces.Discrete(2))


def first_time(mark: Path) -> bool:
    """True for the first who asks."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def cut(mark: Path, env: Scripted) -> Any:
    return {"cut": True}


def die_once(mark: Path, env: Scripted) -> Any:
    if first_time(mark):
        os._exit(3)
    return {}


def die_later_and_say_lost(mark: Path, env: Scripted) -> Any:
    if env.count == 8 and first_time(mark):
        os._exit(3)
    return {"lost": "two pieces"}


def fail_twice_at_once(mark: Path, env: Scripted) -> Any:
    """Ends the process of its first life, and raises in the first step of the second."""
    if first_time(mark):
        os._exit(3)
    if first_time(mark.with_suffix(".again")):
        raise RuntimeError("again")
    return {}


def raise_twice_at_once(mark: Path, env: Scripted) -> Any:
    if first_time(mark) or first_time(mark.with_suffix(".again")):
        raise RuntimeError("again")
    return {}


def test_a_truncated_episode_is_received_beside_a_process_that_has_ended(tmp_path: Path) -> None:
    makers = [partial(Scripted, tmp_path / "mark", act) for act in (cut, die_once)]
    with closing(windrow.make_vec(makers, workers=2, batch_size=1, on_loss=1)) as envs:
        envs.async_reset(seed=0)
        for _ in range(2):
            envs.recv()
        envs.send(np.zeros(2, np.int64), np.arange(2))
        lost = {}
        for _ in range(2):
            *_, truncated, info = envs.recv()
            assert truncated[0]
            lost[info["env_id"][0]] = "lost" in info
        assert lost == {0: False, 1: True}


def test_an_entry_of_the_environment_that_is_called_lost_is_no_loss(tmp_path: Path) -> None:
    makers = [partial(Scripted, tmp_path / "mark", die_later_and_say_lost)]
    with closing(windrow.make_vec(makers, workers=1, on_loss=1)) as envs:
        envs.reset(seed=0)
        reasons = [envs.step(np.zeros(1, np.int64))[4]["lost"][0] for _ in range(8)]
    assert reasons[:7] == ["two pieces"] * 7 and "exit status 3" in reasons[7]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_processes_that_end_in_the_same_step_are_replaced(mode: str, tmp_path: Path) -> None:
    makers = [partial(Scripted, tmp_path / f"mark{number}", die_once) for number in range(2)]
    made = windrow.make_vec(makers, workers=2, on_loss=1, autoreset_mode=mode)
    with closing(made) as envs:
        envs.reset(seed=0)
        _, _, _, truncated, info = envs.step(np.zeros(2, np.int64))
        reasons = info["final_info"] if mode == "SameStep" else info
        assert truncated.all() and all("exit status 3" in reason for reason in reasons["lost"])
        if mode == "Disabled":
            envs.reset(options={"reset_mask": truncated})
        assert not envs.step(np.zeros(2, np.int64))[3].any()


@pytest.mark.parametrize("kind", [Scripted, OfDictionaries])
def test_a_process_that_ends_between_two_steps_is_replaced(kind: Any, tmp_path: Path) -> None:
    with closing(windrow.make_vec([partial(kind, tmp_path)] * 2, workers=2, on_loss=1)) as envs:
        envs.reset(seed=0)
        actions = envs.action_space.sample()
        os.kill(envs.call("pid")[1], signal.SIGKILL)
        assert envs.step(actions)[3].tolist() == [False, True]
        assert envs.step(actions)[0][:, 1].tolist() == [2, 0]


def test_options_of_a_reset_reach_the_environment_that_takes_the_place_of_a_lost_one(
    tmp_path: Path,
) -> None:
    with closing(windrow.make_vec([partial(Scripted, tmp_path)] * 2, workers=2, on_loss=1)) as envs:
        envs.reset(seed=0)
        os.kill(envs.call("pid")[1], signal.SIGKILL)
        _, info = envs.reset(seed=0, options={"level": 3})
        assert info["lost"][0] is None and "SIGKILL" in info["lost"][1]
        assert envs.get_attr("options") == ({"level": 3}, {"level": 3})


def test_a_reset_of_some_leaves_the_loss_of_another_to_the_step_that_cuts_its_episode(
    tmp_path: Path,
) -> None:
    makers = [partial(Scripted, tmp_path)] * 2
    made = windrow.make_vec(makers, workers=2, on_loss=1, autoreset_mode="Disabled")
    with closing(made) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(2, np.int64))
        os.kill(envs.call("pid")[1], signal.SIGKILL)
        while made._members[0].pids()[1] is not None:  # type: ignore[attr-defined]
            time.sleep(0.01)
        seen, info = envs.reset(options={"reset_mask": np.array([True, False])})
        assert seen[:, 1].tolist() == [0, 1] and "lost" not in info
        seen, _, _, truncated, info = envs.step(np.zeros(2, np.int64))
        assert seen[:, 1].tolist() == [1, 1] and truncated.tolist() == [False, True]
        assert "SIGKILL" in info["lost"][1]


def seeds_of(act: Any, workers: int | None, mode: str, mark: Path) -> list[int]:
    """The seeds of new environments, by the order in which these took the places of others."""
    seeds: dict[int, None] = {}
    makers = [partial(Scripted, mark, act)]
    with closing(windrow.make_vec(makers, workers=workers, on_loss=2, autoreset_mode=mode)) as envs:
        seen, _ = envs.reset(seed=5)
        for _ in range(6):
            seeds[int(seen[0, 0])] = None
            seen, _, _, truncated, _ = envs.step(np.zeros(1, np.int64))
            if mode == "Disabled" and truncated[0]:
                seen, _ = envs.reset(options={"reset_mask": truncated})
    return list(seeds)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_environments_that_are_lost_one_after_the_other_have_other_seeds(
    mode: str, tmp_path: Path
) -> None:
    raised = seeds_of(raise_twice_at_once, None, mode, tmp_path / "a")
    ended = seeds_of(fail_twice_at_once, 1, mode, tmp_path / "b")
    assert len(raised) == 3 and raised[0] == 5
    assert ended == raised, "a loss is a loss, whatever the cause"
