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
from windrow.collectors import AsyncBatchedCollector, Collector, MultiSyncCollector
from windrow.envs import GymEnv, GymWrapper, RenameTransform, SerialEnv, TransformedEnv, check_env


class Telling(gymnasium.Env[Any, Any]):
    """Tells its step and twice that in an array, and at the end of an episode of five the sum of
    both.
    """

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, late: bool = False) -> None:
        self.late = late

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "at": self.count,
            "pair": np.array([self.count, 2 * self.count], np.int16),
            "name": "x",
        }
        return told | ({"end": {"sum": 3.0 * self.count}} if self.count == 5 else {})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {} if self.late else self._told()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return np.array([self.count], np.float32), 1.0, self.count == 5, False, self._told()


KEYS = ["at", "pair", ("end", "sum")]


def telling(env: Any = None) -> GymWrapper:
    return GymWrapper(env or Telling(), info_keys=KEYS, categorical_action_encoding=True)


#: Environments that tell, with the number of dimensions that batches have for them.
TELLING = {
    "one": (telling, 0),
    "several": (lambda: SerialEnv(2, telling), 1),
    **{
        f"a vector, {mode.value}": (
            lambda mode=mode: telling(SyncVectorEnv([Telling] * 2, autoreset_mode=mode)),
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
    env = GymWrapper(
        Telling(),
        info_keys={
            "pair": gymnasium.spaces.Box(0, 9, (2,), np.float32),
            ("end", "sum"): np.zeros(()),
        },
    )
    assert (
        env.observation_spec["pair"].shape == (2,)
        and env.observation_spec["end", "sum"].dtype == torch.float64
    )
    assert env.rollout(3)["next", "pair"].tolist() == [[1, 2], [2, 4], [3, 6]]
    check_env(env)


def test_statistics_of_episodes_reach_batches() -> None:
    recorded = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
    with Collector(
        GymWrapper(recorded, info_keys=[("episode", "r"), ("episode", "l")]),
        None,
        frames_per_batch=200,
    ) as collector:
        batch = next(collector)
    ends = batch["next", "done"].flatten()
    lasted = torch.diff(ends.nonzero().flatten(), prepend=torch.tensor([-1]))
    assert (
        batch["next", "episode", "r"][ends].tolist()
        == batch["next", "episode", "l"][ends].tolist()
        == lasted.tolist()
    )
    assert not batch["next", "episode", "r"][~ends].any()


def test_readers_of_torchrl_say_what_is_read() -> None:
    reader = pytest.importorskip("torchrl.envs.gym_like").default_info_dict_reader
    unbounded = pytest.importorskip("torchrl.data").Unbounded
    for env in (
        GymWrapper(Telling()).set_info_dict_reader(reader(["at", "pair"])),
        GymWrapper(Telling()).set_info_dict_reader(
            reader({"at", "pair"}, spec={"at": unbounded(()), "pair": unbounded((2,))})
        ),
        GymWrapper(Telling()).auto_register_info_dict(),
    ):
        step = env.rollout(2)
        assert step["next", "at"].tolist() == [1, 2] and step["next", "pair"].tolist() == [
            [1, 2],
            [2, 4],
        ]
    with pytest.raises(TypeError, match="expected a function of info and a TensorDict, got int"):
        GymWrapper(Telling()).set_info_dict_reader(3)
    with pytest.raises(TypeError, match="info of a vector is read by its names"):
        GymWrapper(SyncVectorEnv([Telling])).set_info_dict_reader(
            lambda info, tensordict: tensordict
        )


def sums(info: Any, tensordict: Any) -> Any:
    """Makes numbers of what a step has told."""
    tensordict.set("sum", torch.as_tensor(info["pair"].sum(), dtype=torch.float32))
    return tensordict.set(("half", "at"), torch.tensor([info["at"] / 2]))


@pytest.mark.parametrize("way", ["object", "id", "with keys", "twice", "processes"])
def test_functions_read_info(way: str) -> None:
    env = GymWrapper(Telling(), info_keys=["at"]) if way == "with keys" else GymWrapper(Telling())
    if way == "id":
        gymnasium.register("Telling-v0", Telling)
        env = GymEnv("Telling-v0")
    env.set_info_dict_reader(sums)
    if way == "twice":
        env.set_info_dict_reader(
            lambda info, tensordict: tensordict.set("more", tensordict["sum"] + 1)
        )
    if way == "processes":
        collector: Any = MultiSyncCollector(
            [lambda: GymWrapper(Telling()).set_info_dict_reader(sums)], None, frames_per_batch=12
        )
    else:
        collector = Collector(env, None, frames_per_batch=12)
    with collector:
        batch = next(collector)
    assert batch["sum"].tolist() == [0, 3, 6, 9, 12, 0, 3, 6, 9, 12, 0, 3]
    assert batch["next", "half", "at"].tolist() == [[0.5], [1], [1.5], [2], [2.5]] * 2 + [
        [0.5],
        [1],
    ]
    assert ("at" in batch.keys()) == (way == "with keys")
    if way == "twice":
        assert torch.equal(batch["more"], batch["sum"] + 1)


@pytest.mark.parametrize(
    "around",
    [lambda: Telling(), lambda: SyncVectorEnv([Telling], autoreset_mode=AutoresetMode.SAME_STEP)],
)
def test_what_is_left_out_is_told_once(around: Any) -> None:
    from windrow.envs import _info

    _info._told.clear()
    with pytest.warns(
        UserWarning,
        match=r"(Telling|SyncVectorEnv) returns .* in info: 'at', 'pair', 'name'.*info_keys",
    ) as told:
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


def test_native_environments_have_the_info_of_gymnasiums() -> None:
    keys = ["action_mask", "prob"]
    native = GymEnv("Taxi-v4", info_keys=keys, is_rainy=True, fickle_passenger=True)
    theirs = GymEnv(
        "Taxi-v4", info_keys=keys, is_rainy=True, fickle_passenger=True, backend="gymnasium"
    )
    assert native.backend == "native"
    batches = []
    for env in (native, theirs):
        with Collector(env, None, frames_per_batch=600, seed=3) as collector:
            batches.append(next(collector).clone())
    ours, other = batches
    # Random actions are legal ones, and the same.
    assert ours["action_mask"].gather(1, ours["action"].argmax(1, keepdim=True)).all()
    assert set(ours.keys(True, True)) == set(other.keys(True, True))
    for key in ours.keys(True, True):
        assert torch.equal(ours[key], other[key]), key


def test_info_that_native_environments_do_not_have_is_gymnasiums() -> None:
    reader = pytest.importorskip("torchrl.envs.gym_like").default_info_dict_reader
    assert GymEnv("Taxi-v4").set_info_dict_reader(reader(["action_mask"])).backend == "native"
    assert GymEnv("Taxi-v4").set_info_dict_reader().backend == "gymnasium"
    assert GymEnv("Taxi-v4", info_keys={"prob": np.zeros(())}).backend == "gymnasium"
    assert GymEnv("CartPole-v1", info_keys=["x"]).backend == "gymnasium"
    for make in (
        lambda: GymEnv("CartPole-v1", info_keys=["x"], backend="native"),
        lambda: GymEnv("Taxi-v4", backend="native").set_info_dict_reader(),
    ):
        with pytest.raises(ValueError, match='other info_keys need backend="gymnasium"'):
            make()
    with pytest.raises(ValueError, match="FrozenLake-v1 cannot be read: invalid type: null"):
        GymEnv("FrozenLake-v1", map_name=None, backend="native")


def test_an_environment_that_is_being_stepped_is_not_looked_at() -> None:
    env = Telling()
    with Collector(env, None, frames_per_batch=3) as collector:
        next(collector)
        with pytest.raises(ValueError, match="already in use"):
            GymWrapper(env, info_keys=["at"]).reset()
        assert next(collector)["observation"].flatten().tolist() == [3, 4, 0]


class Agent(torch.nn.Module):
    """As in CleanRL's scripts: a parameter is called x."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def get_action_and_value(self, x: torch.Tensor, action: Any = None) -> Any:
        return self.layer(x).argmax(-1), self.layer(x).sum(-1, keepdim=True)


def named(observation: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    assert at.dtype == torch.int64
    return (observation[..., 0].long() + at) % 2


def with_tensordict(td: Any) -> Any:
    return td.set("action", td["at"] % 2)


#: Policies that an environment with one observation takes, each with what it needs of info.
POLICIES: dict[str, Any] = {
    "module": Agent(),
    "method": Agent().get_action_and_value,
    "function": lambda anything: anything[..., 0].long() % 2,
    "inputs": lambda *inputs: inputs[0][..., 0].long() % 2,
    "names": lambda observation: observation[..., 0].long() % 2,
    "names info": named,
    "tensordict": with_tensordict,
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", [*TELLING, "renamed", "served", "workers"])
def test_info_takes_no_policy_away(kind: str, policy: str) -> None:
    """Whoever is a policy without `info_keys` is one with them, in each way of asking for
    actions.
    """
    make, dims = TELLING.get(kind, TELLING["one"])
    act = POLICIES[policy]
    if kind == "renamed":
        env: Any = TransformedEnv(make(), RenameTransform(["pair", ("end", "sum")], ["two", "sum"]))
    else:
        env = make()
    if kind == "served":
        collector: Any = AsyncBatchedCollector(
            [make] * 2, act, frames_per_batch=12, placement="threads"
        )
    elif kind == "workers":
        collector = MultiSyncCollector([make] * 2, act, frames_per_batch=12, placement="threads")
    else:
        collector = Collector(env, act, frames_per_batch=12 * 2**dims)
    with collector:
        batch = next(collector)
    assert batch["at"].max() == 4 and ("two" if kind == "renamed" else "pair") in batch.keys()
    if isinstance(act, torch.nn.Module) and kind not in ("served", "workers"):
        assert env.rollout(3, act).shape[-1] == 3


def test_several_observations_beside_info_need_names() -> None:
    space = gymnasium.spaces.Dict(dict.fromkeys("ab", Telling.observation_space))
    env = gymnasium.wrappers.TransformObservation(
        Telling(), lambda seen: {"a": seen, "b": seen}, space
    )
    with pytest.raises(KeyError, match=r"the policy writes \['a', 'b'\], but no 'action'"):
        Collector(GymWrapper(env, info_keys=["at"]), lambda x: x, frames_per_batch=5)
    # What info brings is not among them.
    seen: list[set[str]] = []

    def push(observations: dict[str, Any]) -> Any:
        seen.append(set(observations))
        return (observations["a"][..., 0] > 0).long()

    next(
        Collector(
            GymWrapper(env, info_keys=["at"], categorical_action_encoding=True),
            push,
            frames_per_batch=5,
        )
    )
    assert seen[-1] == {"a", "b"}


class Limited(gymnasium.Env[Any, Any]):
    """Tells in info which of five choices are legal, and rewards these."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)

    def _told(self) -> Any:
        self.count += 1
        self.legal = np.array([(choice + self.count) % 3 == 0 for choice in range(5)], np.int8)
        return np.zeros(1, np.float32), {"action_mask": self.legal}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._told()

    def step(self, action: Any) -> Any:
        reward = float(self.legal[action])
        seen, info = self._told()
        return seen, reward, self.count == 7, False, info


@pytest.mark.parametrize("one_hot", [True, False])
@pytest.mark.parametrize("way", ["one", "several", *AutoresetMode])
def test_random_actions_obey_a_mask_in_info(way: Any, one_hot: bool) -> None:
    def make(env: Any = None) -> Any:
        return GymWrapper(
            env or Limited(), info_keys=["action_mask"], categorical_action_encoding=not one_hot
        )

    env = {"one": make, "several": lambda: SerialEnv(2, make)}.get(
        way, lambda: make(SyncVectorEnv([Limited] * 2, autoreset_mode=way))
    )()
    with Collector(env, None, frames_per_batch=40) as collector:
        assert next(collector)["next", "reward"].unique().tolist() == [1]
    assert env.rollout(20, break_when_any_done=False)["next", "reward"].unique().tolist() == [1]
