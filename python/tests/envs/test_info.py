"""What environments of Gymnasium return in info, as observations."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from windrow import WorkerError
from windrow.collectors import Collector
from windrow.envs import GymEnv, GymWrapper, SerialEnv, check_env


class Telling(gymnasium.Env[Any, Any]):
    """Tells its step and twice that in an array, and at the end of an episode of five the sum of both."""

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, late: bool = False) -> None:
        self.late = late

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = {"at": self.count, "pair": np.array([self.count, 2 * self.count], np.int16), "name": "x"}
        return told | ({"end": {"sum": 3.0 * self.count}} if self.count == 5 else {})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {} if self.late else self._told()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return np.array([self.count], np.float32), 1.0, self.count == 5, False, self._told()


KEYS = ["at", "pair", ("end", "sum")]

#: Environments that tell, with the number of dimensions that batches have for them.
TELLING = {
    "one": (lambda: GymWrapper(Telling(), info_keys=KEYS), 0),
    "several": (lambda: SerialEnv(2, lambda: GymWrapper(Telling(), info_keys=KEYS)), 1),
    **{
        f"a vector, {mode.value}": (
            lambda mode=mode: GymWrapper(SyncVectorEnv([Telling] * 2, autoreset_mode=mode), info_keys=KEYS),
            1,
        )
        for mode in AutoresetMode
    },
}


@pytest.mark.parametrize("kind", TELLING)
def test_entries_of_info_lie_beside_observations(kind: str) -> None:
    make, dims = TELLING[kind]
    with Collector(make(), None, frames_per_batch=12 * 2**dims) as collector:
        batch = next(collector)
    batch = batch[0] if dims else batch
    assert batch["at"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert batch["next", "at"].tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    assert batch["at"].dtype == torch.int64 and batch["pair"].dtype == torch.int16
    assert batch["next", "pair"].tolist() == [[n, 2 * n] for n in batch["next", "at"].tolist()]
    assert batch["next", "end", "sum"].tolist() == [0, 0, 0, 0, 15, 0, 0, 0, 0, 15, 0, 0]
    assert batch["end", "sum"].tolist() == [0] * 12


def test_what_comes_with_no_reset_is_zero_there() -> None:
    env = GymWrapper(Telling(late=True), info_keys=["at", "pair"])
    batch = next(Collector(env, None, frames_per_batch=6))
    assert batch["pair"].tolist() == [[0, 0], [1, 2], [2, 4], [3, 6], [4, 8], [0, 0]]


def test_specs_say_what_entries_are_before_there_are_any() -> None:
    env = GymWrapper(Telling(), info_keys={"pair": gymnasium.spaces.Box(0, 9, (2,), np.float32), ("end", "sum"): np.zeros(())})
    assert env.observation_spec["pair"].shape == (2,) and env.observation_spec["end", "sum"].dtype == torch.float64
    assert env.rollout(3)["next", "pair"].tolist() == [[1, 2], [2, 4], [3, 6]]
    check_env(env)


def test_statistics_of_episodes_reach_batches() -> None:
    recorded = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
    with Collector(GymWrapper(recorded, info_keys=[("episode", "r"), ("episode", "l")]), None, frames_per_batch=200) as collector:
        batch = next(collector)
    ends = batch["next", "done"].flatten()
    lasted = torch.diff(ends.nonzero().flatten(), prepend=torch.tensor([-1]))
    assert batch["next", "episode", "r"][ends].tolist() == batch["next", "episode", "l"][ends].tolist() == lasted.tolist()
    assert not batch["next", "episode", "r"][~ends].any()


def test_readers_of_torchrl_say_what_is_read() -> None:
    reader = pytest.importorskip("torchrl.envs.gym_like").default_info_dict_reader
    unbounded = pytest.importorskip("torchrl.data").Unbounded
    for env in (
        GymWrapper(Telling()).set_info_dict_reader(reader(["at", "pair"])),
        GymWrapper(Telling()).set_info_dict_reader(reader({"at", "pair"}, spec={"at": unbounded(()), "pair": unbounded((2,))})),
        GymWrapper(Telling()).auto_register_info_dict(),
    ):
        step = env.rollout(2)
        assert step["next", "at"].tolist() == [1, 2] and step["next", "pair"].tolist() == [[1, 2], [2, 4]]
    with pytest.raises(TypeError, match="expected a default_info_dict_reader, or None, got function"):
        GymWrapper(Telling()).set_info_dict_reader(lambda info, tensordict: tensordict)


@pytest.mark.parametrize("around", [lambda: Telling(), lambda: SyncVectorEnv([Telling], autoreset_mode=AutoresetMode.SAME_STEP)])
def test_what_is_left_out_is_told_once(around: Any) -> None:
    from windrow.envs import _info

    _info._told.clear()
    with pytest.warns(UserWarning, match=r"(Telling|SyncVectorEnv) returns .* in info: 'at', 'pair', 'name'.*info_keys") as told:
        next(Collector(around(), None, frames_per_batch=20))
    told_of = [str(one.message) for one in told if "in info" in str(one.message)]
    assert len(told_of) == 2 and "('end', 'sum')" in told_of[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(Collector(around(), None, frames_per_batch=20))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("at", r"write \['at'\]"),
        (["reward"], "batches have another entry called 'reward'"),
        (["name"], "'name' of info cannot be observed: expected numbers, got 'x'"),
        ([("at", "x"), "at"], "an observation of this name already"),
    ],
)
def test_keys_that_cannot_be_read_are_refused(keys: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        GymWrapper(Telling(), info_keys=keys).reset()


def test_an_entry_that_turns_out_to_be_another_names_the_way_out() -> None:
    class Late(Telling):
        def _told(self) -> dict[str, Any]:
            return {"late": np.zeros(3)} if self.count == 4 else {}

    message = r'the entry "late" of info of Late: expected .*float64 \(3,\).*give info_keys as a dictionary'
    with pytest.raises(WorkerError, match=message):
        next(Collector(GymWrapper(Late(), info_keys=["late"]), None, frames_per_batch=10))


def test_native_environments_have_no_info() -> None:
    assert GymEnv("CartPole-v1", info_keys=["x"]).backend == "gymnasium"
    with pytest.raises(ValueError, match='info_keys need backend="gymnasium"'):
        GymEnv("CartPole-v1", info_keys=["x"], backend="native")


def test_an_environment_that_is_being_stepped_is_not_looked_at() -> None:
    env = Telling()
    with Collector(env, None, frames_per_batch=3) as collector:
        next(collector)
        with pytest.raises(ValueError, match="already in use"):
            GymWrapper(env, info_keys=["at"]).reset()
        assert next(collector)["observation"].flatten().tolist() == [3, 4, 0]
