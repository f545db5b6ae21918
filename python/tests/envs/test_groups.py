"""Nested entries with dimensions of their own: batches have them where TorchRL's do."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

import windrow.envs as ours

torchrl = pytest.importorskip("torchrl")

from torchrl.collectors import Collector as TheirCollector
from torchrl.data import (
    Categorical,
    Composite,
    LazyTensorStorage as TheirStorage,
    ReplayBuffer as TheirBuffer,
)

from theirs import Agents
from windrow import WorkerError
from windrow.collectors import AsyncBatchedCollector, AsyncCollector, Collector, MultiSyncCollector
from windrow.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
)


def sizes(td: TensorDictBase) -> dict[Any, tuple[Any, ...]]:
    """Batch size and names of each dict."""
    nested = {key: value for key, value in td.items(True) if isinstance(value, TensorDictBase)}
    return {
        key: (tuple(value.batch_size), value.names) for key, value in [((), td), *nested.items()]
    }


def groups(td: TensorDictBase) -> list[tuple[int, ...]]:
    return [tuple(td.get(key).batch_size) for key in ("agents", ("next", "agents"))]


@pytest.mark.parametrize("batch", [(), (3,)])
def test_groups_have_the_sizes_that_torchrl_gives_them(batch: tuple[int, ...]) -> None:
    arguments = {"frames_per_batch": 12, "total_frames": 12}
    theirs = next(iter(TheirCollector(Agents(batch), None, **arguments)))
    collector = Collector(Agents(batch), None, **arguments)
    fake, batch_ = collector.fake_tensordict(), next(collector)
    assert sizes(batch_) == sizes(theirs) == sizes(fake)
    assert groups(batch_.reshape(-1)) == [(12, 2)] * 2
    assert groups(batch_[..., 0]) == [(*batch, 2)] * 2


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_envs": 2},
        {"cat_results": "stack"},
        {"cat_results": "stack", "preemptive_threshold": 0.5},
        {"trajs_per_batch": 3},
        {"trajs_per_batch": 3, "traj_format": "cat"},
        {"split_trajs": True},
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_groups_of_batches_of_each_form(arguments: dict[str, Any]) -> None:
    batch = next(
        MultiSyncCollector(
            [Agents] * 2, None, placement="threads", frames_per_batch=12, **arguments
        )
    )
    assert groups(batch) == [(*batch.batch_size, 2)] * 2


def test_the_policy_is_given_groups() -> None:
    seen = set()

    def policy(td: Any) -> Any:
        seen.add((tuple(td.batch_size), tuple(td["agents"].batch_size)))
        return td.set(
            "agents", td["agents"].set("action", torch.zeros(*td["agents"].batch_size, 1))
        )

    for batch in (), (3,), (2, 3):
        next(Collector(Agents(batch), policy, frames_per_batch=6))
    assert seen == {((), (2,)), ((3,), (3, 2)), ((2, 3), (2, 3, 2))}


def test_a_served_policy_is_given_rows() -> None:
    seen = set()

    def policy(td: Any) -> Any:
        seen.add(tuple(td.batch_size))
        return td.set(
            "agents", td["agents"].set("action", torch.zeros(*td["agents"].batch_size, 1))
        )

    with AsyncBatchedCollector(
        [lambda: Agents((2, 3))], policy, placement="threads", frames_per_batch=12
    ) as collector:
        assert next(collector).numel() == 12
    assert seen == {(6,)}


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_buffers_keep_groups(storage: Any, tmp_path: Any) -> None:
    buffer = ReplayBuffer(storage=storage(100), batch_size=8)
    collector = Collector(
        Agents((3,)), None, frames_per_batch=12, total_frames=24, replay_buffer=buffer
    )
    for _ in collector:
        pass
    assert groups(buffer.sample()) == [(8, 2)] * 2
    assert groups(buffer[:]) == [(24, 2)] * 2
    buffer.dumps(tmp_path)
    again = ReplayBuffer(storage=storage(100), batch_size=8)
    again.loads(tmp_path)
    assert groups(again.sample()) == [(8, 2)] * 2


def test_slices_keep_groups() -> None:
    sampler = SliceSampler(slice_len=4, traj_key=("collector", "traj_ids"))
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=8)
    buffer.extend(next(Collector(Agents(), None, frames_per_batch=24)))
    assert groups(buffer.sample()) == [(8, 2)] * 2


def test_buffers_keep_the_groups_of_any_tensordict() -> None:
    inner = TensorDict({"x": torch.zeros(10, 2, 3)}, [10, 2])
    frames = TensorDict(
        {"agents": inner, "other": TensorDict({"y": torch.zeros(10, 2)}, [10])}, [10]
    )
    ours_ = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    theirs = TheirBuffer(storage=TheirStorage(10), batch_size=4)
    for buffer in ours_, theirs:
        buffer.extend(frames)
    assert sizes(ours_.sample()) == sizes(theirs.sample())


def test_environments_around_it_have_groups() -> None:
    env = ours.TransformedEnv(Agents((3,)), ours.StepCounter())
    assert env.observation_spec["agents"].shape == (3, 2)
    assert env.full_action_spec["agents"].shape == env.full_reward_spec["agents"].shape == (3, 2)
    assert env.observation_spec_unbatched["agents"].shape == (2,)
    root = env.reset()
    step = env.step(env.rand_action(root))
    assert groups(step) == groups(env.fake_tensordict()) == [(3, 2)] * 2
    assert groups(next(Collector(env, None, frames_per_batch=12))) == [(3, 4, 2)] * 2


def test_other_nested_entries_have_none() -> None:
    import gymnasium
    from gymnasium.spaces import Box, Dict

    class Nested(gymnasium.Env):
        observation_space = Dict({"a": Dict({"x": Box(-1, 1, (2, 3)), "y": Box(-1, 1, (2,))})})
        action_space = Box(-1, 1, (1,))

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 1.0, False, False, {}

    assert next(Collector(Nested(), None, frames_per_batch=4))["a"].batch_size == (4,)


class Ending(Agents):
    """Has flags for its agents, too."""

    def __init__(self) -> None:
        super().__init__()
        flags = {
            name: Categorical(2, (2, 1), dtype=torch.bool)
            for name in ("done", "terminated", "truncated")
        }
        self.full_done_spec = Composite(agents=Composite(flags, shape=(2,)), **self.full_done_spec)

    def _root(self) -> Any:
        root = super()._root()
        for name in ("done", "terminated", "truncated"):
            root.set(("agents", name), torch.zeros(2, 1, dtype=torch.bool))
        return root


@pytest.mark.parametrize(
    "make",
    [
        lambda: next(Collector(Ending(), None, frames_per_batch=7, set_truncated=True)),
        lambda: next(
            MultiSyncCollector(
                [Ending] * 2,
                None,
                placement="threads",
                frames_per_batch=14,
                set_truncated=True,
                cat_results="stack",
            )
        )[1],
        lambda: next(
            Collector(
                ours.TransformedEnv(Ending(), ours.StepCounter()),
                None,
                frames_per_batch=7,
                set_truncated=True,
            )
        ),
        lambda: ours.TransformedEnv(Ending(), ours.StepCounter()).rollout(
            7, break_when_any_done=False, set_truncated=True
        ),
    ],
    ids=["collector", "workers", "layer", "by hand"],
)
def test_flags_of_groups_are_marked_with_those_of_the_step(make: Any) -> None:
    batch = make()
    for name in ("done", "truncated"):
        assert batch["next", "agents", name][..., 0].tolist() == [[False, False]] * 6 + [
            [True, True]
        ]
        assert batch["next", name][-1].item() and not batch["agents", name].any()
    assert not batch["next", "agents", "terminated"].any()


class Leaving(Ending):
    """The first of two agents leaves after three steps, which ends the episode; the other one too,
    where ``both``.
    """

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.both = both

    def _step(self, tensordict: Any) -> Any:
        following = super()._step(tensordict)
        left = torch.tensor([[self.count >= 3], [self.both and self.count >= 3]])
        following["agents", "terminated"], following["agents", "done"] = left, left.clone()
        following["terminated"] = following["done"] = left.any(0)
        return following


@pytest.mark.parametrize("both", [False, True])
def test_agents_that_go_on_where_the_root_ends_an_episode_are_warned_of_once(both: bool) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        next(Collector(Leaving(both), None, frames_per_batch=9, total_frames=9))
    own = [str(one.message) for one in told if "ends by the flags at the root" in str(one.message)]
    assert len(own) == (0 if both else 1) and all("('agents', 'done')" in one for one in own)


def test_an_episode_goes_on_behind_a_step_that_is_marked() -> None:
    with Collector(Ending(), None, frames_per_batch=2, set_truncated=True) as collector:
        first, second = next(collector), next(collector)
    assert (
        first["next", "agents", "truncated"][-1].all() and not second["agents", "truncated"].any()
    )
    assert second["agents", "observation"][0].unique().tolist() == [2]


@pytest.mark.parametrize("workers", [1, 2])
def test_environments_of_several_dimensions_keep_them(workers: int) -> None:
    arguments = {"frames_per_batch": 48 * workers, "total_frames": 96 * workers}
    if workers == 1:
        collector = Collector(Agents((2, 3)), None, **arguments)
    else:
        collector = MultiSyncCollector(
            [lambda: Agents((2, 3))] * 2, None, placement="threads", **arguments
        )
    theirs = next(iter(TheirCollector(Agents((2, 3)), None, frames_per_batch=48, total_frames=48)))
    for batch in (collector.fake_tensordict(), *collector):
        assert batch.shape == (2 * workers, 3, 8) and batch.names[-1] == "time"
        assert (
            groups(batch) == [(2 * workers, 3, 8, 2)] * 2
            and batch["agents", "observation"].shape[-1] == 3
        )
    assert sizes(batch[:2]) == sizes(theirs)
    assert torch.equal(batch[:2]["next", "agents", "reward"], theirs["next", "agents", "reward"])
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    buffer.extend(batch[:2])
    assert torch.equal(
        buffer[:]["agents", "observation"], batch[:2].reshape(-1)["agents", "observation"]
    )


class Mortal(Agents):
    """Kills its process at its step 12."""

    steps = 0

    def _step(self, tensordict: Any) -> Any:
        self.steps += 1
        if self.steps == 12:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._step(tensordict)


def test_the_dimensions_of_a_worker_that_has_died_since_are_known() -> None:
    collector = AsyncCollector(
        lambda: Mortal((2, 3)), None, placement="processes", frames_per_batch=48
    )
    assert next(collector).shape == (2, 3, 8)
    with pytest.raises(WorkerError, match="SIGKILL"):
        next(collector)
    collector.shutdown(raise_on_error=False)


def test_windrows_environments_have_one_dimension_around_several() -> None:
    around = {
        6: ours.TransformedEnv(Agents((2, 3)), ours.StepCounter()),
        12: ours.SerialEnv(2, lambda: Agents((2, 3))),
    }
    for num_envs, env in around.items():
        assert env.batch_size == (num_envs,)
        with Collector(env, None, frames_per_batch=48) as collector:
            assert next(collector).shape == (num_envs, 48 // num_envs)


class Choosing(Agents):
    """Each agent has one choice of four."""

    def __init__(self, batch: tuple[int, ...] = ()) -> None:
        super().__init__(batch)
        self.action_spec = Composite(
            agents=Composite(action=Categorical(4, (*batch, 2)), shape=(*batch, 2)), shape=batch
        )


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_choice_of_each_agent_has_the_spec_that_torchrl_has(batch: tuple[int, ...]) -> None:
    theirs, env = Choosing(batch), ours.TransformedEnv(Choosing(batch), ours.StepCounter())
    for own, other in (
        (env.full_action_spec["agents", "action"], theirs.full_action_spec["agents", "action"]),
        (
            env.full_action_spec_unbatched["agents", "action"],
            theirs.full_action_spec_unbatched["agents", "action"],
        ),
        (env.action_spec, theirs.full_action_spec["agents", "action"]),
        (
            env.input_spec["full_action_spec", "agents", "action"],
            theirs.input_spec["full_action_spec", "agents", "action"],
        ),
    ):
        assert own == other and own.space.n == 4
    assert env.full_action_spec["agents", "action"].is_in(
        env.rand_action(env.reset())["agents", "action"]
    )
    several = ours.GymEnv("CartPole-v1", num_envs=2, categorical_action_encoding=True)
    assert several.action_spec.space.n == 2 and several.action_spec.shape == (2,)
