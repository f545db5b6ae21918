"""What TorchRL's environments observe and no array holds, beside what TorchRL's own collector
delivers.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch

import windrow
import windrow.envs as ours

torchrl = pytest.importorskip("torchrl")

from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDictBase
from torchrl.collectors import Collector as TheirCollector
from torchrl.data import NonTensor, Unbounded
from torchrl.testing.mocking_classes import EnvWithDynamicSpec, HeterogeneousCountingEnv

from telling import TEXT, Growing, Reader, Telling, agrees, told
from theirs import Agents, Counting
from windrow.collectors import Collector, MultiSyncCollector
from windrow.data import LazyTensorStorage, ListStorage, ReplayBuffer
from windrow.torchrl.envs import Transform


def both(make: Any, frames: int, total: int, policy: Any = None) -> list[tuple[Any, Any]]:
    """Batches of TorchRL, each with that of windrow."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        own = list(Collector(make(), policy, frames_per_batch=frames, total_frames=total))
    return list(
        zip(
            TheirCollector(make(), policy, frames_per_batch=frames, total_frames=total),
            own,
            strict=True,
        )
    )


@pytest.mark.parametrize("batch", [(), (2,)])
def test_objects_are_those_of_torchrl(batch: tuple[int, ...]) -> None:
    for theirs, own in both(lambda: Telling(batch), 14, 42):
        assert (
            isinstance(own.get(TEXT), NonTensorStack) and own.get(TEXT).batch_size == own.batch_size
        )
        for side in (), ("next",):
            assert own.get((*side, *TEXT)).tolist() == theirs.get((*side, *TEXT)).tolist()


def test_environments_in_several_dimensions_keep_them() -> None:
    class Grid(Counting):
        def __init__(self) -> None:
            super().__init__((2, 3))
            self.observation_spec["text"] = NonTensor((2, 3))

        def _root(self, count: Any) -> Any:
            rows = [
                NonTensorStack(*(f"{row} {place} {number}" for place, (number,) in enumerate(own)))
                for row, own in enumerate(count.tolist())
            ]
            return super()._root(count).set("text", torch.stack(rows))

    for theirs, own in both(Grid, 42, 84):
        assert own.batch_size == (2, 3, 7)
        assert own["text"] == theirs["text"] and own["next", "text"] == theirs["next", "text"]


def test_an_ended_episode_keeps_its_last_object() -> None:
    batch = next(Collector(Telling(), None, frames_per_batch=7))
    assert told(batch)[4:6] == ["1 4", "2 0"] and told(batch, "next")[4:6] == ["1 5", "2 1"]


@pytest.mark.parametrize("batch", [(), (2,)])
def test_tensors_whose_shape_changes_are_those_of_torchrl(batch: tuple[int, ...]) -> None:
    for theirs, own in both(lambda: Growing(batch), 14, 28):
        assert type(own["data"]) is type(theirs["data"]) is LazyStackedTensorDict and type(
            own
        ) is type(theirs)
        assert own["data"].stack_dim == theirs["data"].stack_dim and own.names == theirs.names
        for one, other in zip(own.unbind(-1), theirs.unbind(-1), strict=True):
            for key in ("data", "past"), ("next", "data", "past"), ("data", "count"):
                assert torch.equal(one[key], other[key])
    for theirs, own in both(EnvWithDynamicSpec, 14, 28):
        assert (
            type(own) is type(theirs) is LazyStackedTensorDict and own.stack_dim == theirs.stack_dim
        )
        shapes = [
            [value.shape for value in batch.get("observation", as_list=True)]
            for batch in (theirs, own)
        ]
        assert shapes[0] == shapes[1]


def test_shapes_that_happen_to_be_alike_are_one_tensor() -> None:
    class Constant(Growing):
        def _root(self, count: Any) -> Any:
            return super()._root(count * 0)

    ((theirs, own),) = both(Constant, 7, 7)
    assert torch.equal(own["data", "past"], theirs["data", "past"])


@pytest.mark.parametrize("batch", [(), (2,)])
def test_agents_may_differ_from_each_other(batch: tuple[int, ...]) -> None:
    for theirs, own in both(
        lambda: HeterogeneousCountingEnv(max_steps=3, batch_size=batch), 14, 28
    ):
        for side in (), ("next",):
            group, expected = own.get((*side, "lazy")), theirs.get((*side, "lazy"))
            assert type(group) is type(expected) is LazyStackedTensorDict
            assert group.stack_dim == expected.stack_dim and group.batch_size == expected.batch_size
            for one, other in zip(group.unbind(-1), expected.unbind(-1), strict=True):
                assert set(one.keys()) == set(other.keys())
                assert all(
                    torch.equal(one[key], value) for key, value in other.items() if key != "action"
                )
        actions = [
            [agent["action"].shape for agent in batch["lazy"].unbind(-1)] for batch in (theirs, own)
        ]
        assert actions[0] == actions[1]


def test_a_policy_acts_for_agents_that_differ() -> None:
    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        for number, agent in enumerate(tensordict["lazy"].unbind(tensordict.ndim)):
            agent.set(
                "action",
                torch.full(
                    (*tensordict.shape, (3, 2, 2)[number]), number + agent["lidar"].shape[-1] / 10
                ),
            )
        return tensordict

    ((theirs, own),) = both(
        lambda: HeterogeneousCountingEnv(max_steps=3, batch_size=()), 7, 7, policy
    )
    for one, other in zip(own["lazy"].unbind(-1), theirs["lazy"].unbind(-1), strict=True):
        assert torch.equal(one["action"], other["action"]) and one["action"].unique().numel() == 1


def test_each_agent_may_tell_something() -> None:
    class Talking(Agents):
        def __init__(self) -> None:
            super().__init__()
            self.observation_spec["agents", "text"] = NonTensor((2,))

        def _root(self) -> Any:
            return (
                super()
                ._root()
                .set(("agents", "text"), NonTensorStack(f"a {self.count}", f"b {self.count}"))
            )

    for theirs, own in both(Talking, 6, 12):
        assert own["agents", "text"] == theirs["agents", "text"]
        assert own["next", "agents", "text"] == theirs["next", "agents", "text"]
        assert own["agents"].batch_size == (6, 2)


def test_any_object_is_one() -> None:
    class Listing(Telling):
        def _root(self, count: Any) -> Any:
            root = super()._root(count)
            root["data"].set_non_tensor("text", {"list": [int(count)]})
            return root

    ((theirs, own),) = both(Listing, 7, 7)
    assert told(own) == told(theirs) == [{"list": [number]} for number in (0, 1, 2, 3, 4, 0, 1)]


def test_what_a_step_does_not_give_is_none() -> None:
    class Silent(Telling):
        def _step(self, tensordict: Any) -> Any:
            return super()._step(tensordict).exclude(TEXT)

    with pytest.warns(
        UserWarning,
        match=r"steps of Silent lack what its observation_spec names, and batches have zeros there",
    ):
        batch = next(Collector(Silent(), None, frames_per_batch=7))
    assert told(batch, "next") == [None] * 7 and told(batch) == ["1 0", *[None] * 4, "2 0", None]


@pytest.mark.parametrize("key", [TEXT, ("data", "count")])
@pytest.mark.parametrize("what", ["step", "reset"])
def test_what_a_later_step_or_reset_does_not_give_is_an_error(key: Any, what: str) -> None:
    class Forgetful(Telling):
        def _step(self, tensordict: Any) -> Any:
            following = super()._step(tensordict)
            return (
                following.exclude(key)
                if what == "step" and int(following["data", "count"]) == 3
                else following
            )

        def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
            root = super()._reset(tensordict, **kwargs)
            return root.exclude(key) if what == "reset" and self.episode == 2 else root

    place = "step 2" if what == "step" else "episode 1"
    with pytest.raises(
        Exception,
        match=f"environment 0, .*{place}.*this {what} of Forgetful lacks {re.escape(repr(key))}, which its specs name",
    ):
        next(Collector(Forgetful(), None, frames_per_batch=7))


@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_policy_reads_objects(batch: tuple[int, ...]) -> None:
    for own in Collector(Telling(batch), Reader(), frames_per_batch=14, total_frames=28):
        assert torch.equal(own["read"], own["data", "count"].long()) and agrees(own)


def test_a_policy_reads_objects_by_the_names_of_its_parameters() -> None:
    class Flat(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.observation_spec["text"] = NonTensor(())
            self.observation_spec["past"] = Unbounded((-1,))

        def _root(self, count: Any) -> Any:
            return (
                super()
                ._root(count)
                .set("text", f"{int(count)}")
                .set("past", torch.zeros(1 + int(count)))
            )

    def policy(text: Any, past: Any) -> Any:
        return torch.tensor([int(text) % 2 == 1]), torch.tensor([int(text), len(past)])

    batch = next(Collector(Flat(), policy, frames_per_batch=7))
    assert batch["output1"].tolist() == [[count, count + 1] for count in (0, 1, 2, 3, 4, 0, 1)]


def test_a_policy_reads_tensors_whose_shape_changes() -> None:
    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        seen = (
            tensordict.get("observation", as_list=True)
            if tensordict.ndim
            else [tensordict["observation"]]
        )
        means = torch.stack([one.mean((0, 1)) for one in seen])
        return tensordict.set("action", means if tensordict.ndim else means[0])

    ((theirs, own),) = both(EnvWithDynamicSpec, 14, 14, policy)
    assert torch.equal(own["action"], theirs["action"])
    together = next(Collector(EnvWithDynamicSpec, policy, frames_per_batch=14, num_envs=2))
    assert together["action"][..., 0].tolist() == [[0, 1, 2, 3, 4, 0, 1]] * 2


def test_a_policy_must_not_write_objects() -> None:
    from tensordict.nn import TensorDictModule

    policy = TensorDictModule(
        lambda text: (torch.tensor([True]), text), in_keys=[TEXT], out_keys=["action", TEXT]
    )
    with pytest.raises(
        TypeError,
        match=r"the policy writes \('data', 'text'\), which the environment observes and no array holds",
    ):
        Collector(Telling(), policy, frames_per_batch=7)


@pytest.mark.parametrize("num_envs", [None, 2])
def test_what_a_policy_replaces_or_adds_is_named(num_envs: int | None) -> None:
    def replaces(tensordict: Any) -> Any:
        acted = tensordict.set("action", torch.ones(*tensordict.shape, 1, dtype=torch.bool))
        acted["data"].set_non_tensor("text", "replaced")
        return acted

    def adds(tensordict: Any) -> Any:
        return tensordict.set(
            "action", torch.ones(*tensordict.shape, 1, dtype=torch.bool)
        ).set_non_tensor("said", "added")

    with pytest.raises(
        TypeError,
        match=r"the policy writes \('data', 'text'\), which the environment observes and no array holds",
    ):
        Collector(Telling, replaces, frames_per_batch=14, num_envs=num_envs)
    with pytest.warns(
        windrow.Warning,
        match=r"the policy writes what no array holds, which batches leave out: \['said'\]",
    ):
        batch = next(Collector(Telling, adds, frames_per_batch=14, num_envs=num_envs))
    assert agrees(batch) and "said" not in batch.keys()


def actions_of(tensordict: TensorDictBase) -> TensorDictBase:
    for number, agent in enumerate(tensordict["lazy"].unbind(tensordict.ndim)):
        agent.set("action", torch.full((*tensordict.shape, (3, 2, 2)[number]), number + 0.5))
    return tensordict


def names_in(data: Any) -> set[str]:
    return {name for key in data.keys(True) for name in ((key,) if isinstance(key, str) else key)}


@pytest.mark.parametrize("policy", [None, actions_of])
def test_environments_around_agents_that_differ_show_them_in_their_group(policy: Any) -> None:
    def make() -> Any:
        return HeterogeneousCountingEnv(max_steps=3, batch_size=())

    for env in (
        ours.TransformedEnv(make(), ours.StepCounter()),
        ours.SerialEnv(2, make),
        ours.ParallelEnv(2, make),
    ):
        with env:
            assert env.action_keys == [("lazy", "action")] and env.action_spec["lazy"].shape == (
                *env.batch_size,
                3,
            )
            root = env.rand_action(env.reset())
            assert env.action_spec.is_in(root.select(("lazy", "action")))
            found = env.rollout(3, policy)
            assert found.names[-1] == "time" and not any(
                name.startswith("(") for name in names_in(found) | names_in(env.fake_tensordict())
            )
            assert [
                agent["action"].shape[-1] for agent in found.reshape(-1)[0]["lazy"].unbind(-1)
            ] == [3, 2, 2]
            ours.check_env(env, steps=7)
    with pytest.raises(
        KeyError, match=r"expected an action \('lazy', 'action'\) for HeterogeneousCountingEnv"
    ):
        env = ours.TransformedEnv(make(), ours.StepCounter())
        env.step(env.reset())


@pytest.mark.parametrize("storage", [ListStorage, LazyTensorStorage])
def test_agents_that_differ_are_the_same_in_a_buffer_however_they_were_written(
    storage: Any,
) -> None:
    options: dict[str, Any] = {"frames_per_batch": 6, "total_frames": 12}
    buffer = ReplayBuffer(storage=storage(100), batch_size=8)
    for _ in range(2):
        for batch in Collector(
            lambda: HeterogeneousCountingEnv(max_steps=3, batch_size=()), actions_of, **options
        ):
            buffer.extend(batch)
        for _ in Collector(
            lambda: HeterogeneousCountingEnv(max_steps=3, batch_size=()),
            actions_of,
            replay_buffer=buffer,
            **options,
        ):
            pass
    assert len(buffer) == 48
    for frame in (*buffer[:].unbind(0), *buffer.sample().unbind(0)):
        for number, agent in enumerate(frame["lazy"].unbind(0)):
            assert agent["action"].shape == ((3, 2, 2)[number],) and bool(
                (agent["action"] == number + 0.5).all()
            )
    assert not any("members" in str(key) for key in buffer.state_dict()["frames"])


@pytest.mark.filterwarnings("ignore:environments written in Python share:UserWarning")
def test_padding_of_agents_that_differ_is_not_written() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=8)
    envs = [lambda: HeterogeneousCountingEnv(max_steps=3, batch_size=())] * 2
    options: dict[str, Any] = {
        "frames_per_batch": 7,
        "total_frames": 14,
        "cat_results": "stack",
        "placement": "threads",
    }
    for _ in MultiSyncCollector(envs, actions_of, replay_buffer=buffer, **options):
        pass
    assert len(buffer) == 14 and ("collector", "mask") not in buffer[:].keys(True)


@pytest.mark.parametrize(
    "options", [{"split_trajs": True}, {"trajs_per_batch": 2}, {"num_envs": 2}]
)
def test_trajectories_of_agents_that_differ_are_split(options: dict[str, Any]) -> None:
    batch = next(
        Collector(
            lambda: HeterogeneousCountingEnv(max_steps=3, batch_size=()),
            None,
            frames_per_batch=6,
            **options,
        )
    )
    assert batch.shape[0] == 2 and batch.names == [None, "time"]
    assert [agent["action"].shape[-1] for agent in batch[0, 0]["lazy"].unbind(-1)] == [3, 2, 2]


def test_environments_of_changing_shapes_pass_their_check() -> None:
    for make in (Growing, Telling):
        env = ours.TransformedEnv(make(), ours.StepCounter())
        fake = env.fake_tensordict()
        if make is Growing:
            assert fake["data", "past"].shape == (0, 2)
            ours.check_env(env, steps=12)
        else:
            assert fake["data", "text"] == "0 0"
            ours.check_env_specs(env)


def test_windrows_classes_around_such_environments() -> None:
    batch = next(
        Collector(ours.TransformedEnv(Telling(), ours.StepCounter()), None, frames_per_batch=7)
    )
    assert agrees(batch) and batch["step_count"].flatten().tolist() == [0, 1, 2, 3, 4, 0, 1]
    collector = Collector(
        lambda: ours.SerialEnv(2, Telling), None, frames_per_batch=28, num_envs=2, total_frames=280
    )
    assert all(agrees(batch) for batch in collector)


class Names(Transform):
    """Names the position of a cart."""

    def _call(self, next_tensordict: Any) -> Any:
        return next_tensordict.set("name", f"{float(next_tensordict['observation'][0]):.6f}")

    def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec: Any) -> Any:
        observation_spec["name"] = NonTensor((), example_data="0")
        return observation_spec


@pytest.mark.filterwarnings("ignore:Names is a transform of TorchRL's:UserWarning")
@pytest.mark.parametrize("placement", ["threads", "processes"])
@pytest.mark.filterwarnings("ignore:environments written in Python share:UserWarning")
def test_a_transform_may_make_objects(placement: str) -> None:
    def make() -> Any:
        return ours.TransformedEnv(ours.GymEnv("CartPole-v1"), Names())

    with MultiSyncCollector(
        [make, make], None, frames_per_batch=20, total_frames=40, placement=placement
    ) as collector:
        for batch in collector:
            for side in (), ("next",):
                positions = batch[(*side, "observation")][:, 0].tolist()
                assert batch.get((*side, "name")).tolist() == [
                    f"{position:.6f}" for position in positions
                ]


@pytest.mark.parametrize("batch", [(), (2,)])
def test_an_environment_that_is_stepped_by_hand_gives_them(batch: tuple[int, ...]) -> None:
    def told_in(root: Any) -> Any:
        text = root.get(TEXT)
        return text.tolist() if batch else text.data

    env = ours.TransformedEnv(Telling(batch), ours.StepCounter())
    root = env.reset()
    assert told_in(root) == (["1 0"] * 2 if batch else "1 0")
    stepped = env.rand_step(root)
    assert (
        told_in(stepped["next"]) == (["1 1"] * 2 if batch else "1 1")
        and int(stepped["next", "step_count"].flatten()[0]) == 1
    )
    ragged = ours.TransformedEnv(Growing(batch), ours.StepCounter()).rollout(3)
    assert [frame["next", "data", "past"].shape[-2] for frame in ragged.unbind(-1)] == [2, 3, 4]
