"""Policies that write what the environment observes too: batches hold what they wrote, and what
followed from the environment.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential

torchrl = pytest.importorskip("torchrl")

from torchrl.collectors import Collector as TheirCollector
from torchrl.data import Composite, Unbounded
from torchrl.envs import GymEnv as TheirGymEnv

from theirs import Counting
from windrow.collectors import Collector, MultiSyncCollector
from windrow.envs import GymEnv

ENVS = {"native": lambda: GymEnv("Pendulum-v1"), "torchrl": lambda: TheirGymEnv("Pendulum-v1")}


def push(observation: torch.Tensor) -> torch.Tensor:
    return observation[..., :1] * 0 + 0.5


def tenfold(observation: torch.Tensor) -> torch.Tensor:
    return observation * 10


def normalising() -> Any:
    norm = TensorDictModule(tenfold, ["observation"], ["observation"])
    return TensorDictSequential(norm, TensorDictModule(push, ["observation"], ["action"]))


def setting(td: Any) -> Any:
    td["action"] = push(td["observation"])
    return td.set("observation", tenfold(td["observation"]))


def copying(td: Any) -> Any:
    return setting(td.clone())


def in_place(td: Any) -> Any:
    td["action"] = push(td["observation"])
    td["observation"].mul_(10)
    return td


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize(
    "policy", [normalising(), setting, copying, in_place], ids=["module", "set", "copy", "in place"]
)
def test_the_root_holds_what_the_policy_wrote(policy: Any, env: str) -> None:
    batch = next(Collector(ENVS[env], policy, frames_per_batch=20, seed=1))
    plain = next(
        Collector(ENVS[env], lambda observation: push(observation), frames_per_batch=20, seed=1)
    )
    assert torch.equal(batch["observation"], plain["observation"] * 10)
    assert (batch["next"] == plain["next"]).all()
    torch.testing.assert_close(batch["observation"][1:], batch["next", "observation"][:-1] * 10)


def test_it_is_what_torchrl_has() -> None:
    def collect(collector: Any) -> Any:
        env = TheirGymEnv("Pendulum-v1")
        env.set_seed(3)
        return next(iter(collector(env, normalising(), frames_per_batch=20, total_frames=20)))

    ours, theirs = collect(Collector), collect(TheirCollector)
    assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
    for key in "observation", ("next", "observation"), "action":
        torch.testing.assert_close(ours[key], theirs[key])


@pytest.mark.parametrize("env", ENVS)
def test_random_steps_keep_the_observation(env: str) -> None:
    collector = Collector(ENVS[env], normalising(), frames_per_batch=10, init_random_frames=10)
    random, acted = next(collector).clone(), next(collector)
    torch.testing.assert_close(random["observation"][1:], random["next", "observation"][:-1])
    torch.testing.assert_close(acted["observation"][0], random["next", "observation"][-1] * 10)


def test_rows_of_several_environments() -> None:
    collector = MultiSyncCollector(
        [GymEnv("Pendulum-v1")] * 2,
        normalising(),
        num_envs=3,
        placement="threads",
        frames_per_batch=60,
    )
    for batch in (next(collector), next(collector)):
        assert batch.batch_size == (6, 10)
        torch.testing.assert_close(
            batch["observation"][:, 1:], batch["next", "observation"][:, :-1] * 10
        )


def test_an_entry_of_a_group() -> None:
    def policy(td: Any) -> Any:
        td["action"] = torch.ones((*td.shape, 1), dtype=torch.bool)
        return td.set(("data", "count"), td["data", "count"] + 100)

    batch = next(Collector(Counting, policy, frames_per_batch=7))
    assert batch["data", "count"].flatten().tolist() == [100, 101, 102, 103, 104, 100, 101]
    assert batch["next", "data", "count"].flatten().tolist() == [1, 2, 3, 4, 5, 1, 2]


def test_what_is_left_alone_has_no_column_of_the_policy() -> None:
    given = []

    def policy(td: Any) -> Any:
        given.append(td["observation"])
        return td.set("action", push(td["observation"]))

    batch = next(Collector(GymEnv("Pendulum-v1"), policy, frames_per_batch=5))
    assert torch.equal(batch["observation"], torch.stack(given[1:]))


class Walking(Counting):
    """Steps from the count in its root, as environments without a state of their own do."""

    def __init__(self) -> None:
        super().__init__()
        self.state_spec = Composite(data=Composite(count=Unbounded((1,), dtype=torch.int32)))

    def _step(self, tensordict: TensorDict) -> TensorDict:
        self.count = tensordict["data", "count"]
        return super()._step(tensordict)


def test_an_environment_steps_from_what_the_policy_wrote() -> None:
    def policy(td: Any) -> Any:
        td["action"] = torch.ones((*td.shape, 1), dtype=torch.bool)
        return td.set(("data", "count"), td["data", "count"] + 1)

    ours = next(Collector(Walking(), policy, frames_per_batch=7))
    theirs = next(iter(TheirCollector(Walking(), policy, frames_per_batch=7, total_frames=7)))
    for key in ("data", "count"), ("next", "data", "count"), ("next", "reward"), ("next", "done"):
        assert ours[key].flatten().tolist() == theirs[key].flatten().tolist()
    assert ours["data", "count"].flatten().tolist() == [1, 3, 5, 1, 3, 5, 1]


@pytest.mark.parametrize("name", ["reward", "done", "terminated", "truncated"])
def test_rewards_and_flags_at_the_root_are_the_policys(name: str) -> None:
    value = torch.full((1,), 7.0) if name == "reward" else torch.ones(1, dtype=torch.bool)
    policy = TensorDictModule(
        lambda observation: (push(observation), value), ["observation"], ["action", name]
    )
    batch = next(Collector(GymEnv("Pendulum-v1"), policy, frames_per_batch=5))
    assert (batch[name] == value).all()
    assert not (batch["next", name] == value).any()


@pytest.mark.parametrize(
    "key",
    [
        ("next", "reward"),
        ("next", "done"),
        ("next", "truncated"),
        ("collector", "traj_ids"),
        "policy_version",
        "next",
    ],
)
def test_what_others_write_is_refused(key: Any) -> None:
    def policy(td: Any) -> Any:
        return td.set("action", push(td["observation"])).set(key, torch.zeros(1))

    with pytest.raises(
        ValueError,
        match="the policy writes .* where frames of Pendulum-v1 have .*: let it write that under another",
    ):
        Collector(GymEnv("Pendulum-v1"), policy, frames_per_batch=5, track_policy_version=True)


@pytest.mark.parametrize(
    "change",
    [torch.Tensor.double, lambda value: torch.cat([value, value], -1)],
    ids=["dtype", "shape"],
)
def test_an_observation_of_another_kind_is_refused(change: Any) -> None:
    norm = TensorDictModule(change, ["observation"], ["observation"])
    policy = TensorDictSequential(norm, TensorDictModule(push, ["observation"], ["action"]))
    message = r'writes "observation" float\d\d \[\d\], where frames of Pendulum-v1 have "observation" float32 \[3\]'
    with pytest.raises(ValueError, match=message):
        Collector(GymEnv("Pendulum-v1"), policy, frames_per_batch=5)


def test_collectors_are_built_in_inference_mode() -> None:
    with torch.inference_mode():
        batch = next(Collector(GymEnv("Pendulum-v1"), in_place, frames_per_batch=5))
    torch.testing.assert_close(batch["observation"][1:], batch["next", "observation"][:-1] * 10)
