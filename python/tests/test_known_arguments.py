"""Arguments of collectors, environments and evaluators, as TorchRL's users know them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch
from tensordict import TensorDict
from torch import nn

from cartpole import cartpole, in_threads
from windrow import WorkerError
from windrow.collectors import (
    AsyncCollector,
    Collector,
    Evaluator,
    Interruptor,
    MultiAsyncCollector,
    MultiSyncCollector,
    VanillaWeightUpdater,
    WeightUpdaterBase,
)
from windrow.data import LazyTensorStorage, MultiStep, ReplayBuffer
from windrow.envs import FiniteTensorDictCheck, GymEnv, ParallelEnv, SerialEnv, TransformedEnv

CLASSES = [Collector, AsyncCollector, MultiSyncCollector, MultiAsyncCollector]


def build(kind: Any, env: Any = cartpole, policy: Any = None, **arguments: Any) -> Any:
    env = [env] if kind in (MultiSyncCollector, MultiAsyncCollector) else env
    return kind(env, policy, **{"frames_per_batch": 20, **in_threads(kind), **arguments})


def quiet(make: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make()


@pytest.mark.parametrize("kind", CLASSES)
def test_the_same_tensordict_is_returned_in_a_loop(kind) -> None:
    collector = build(kind, total_frames=60, return_same_td=True, seed=0)
    expected = build(kind, total_frames=60, seed=0)
    seen, first = [], None
    for batch, other in zip(collector, expected, strict=True):
        first = batch if first is None else first
        assert batch is first
        assert all(torch.equal(batch[key], other[key]) for key in other.keys(True, True))
        seen.append(batch["observation"])
    assert len(seen) == 3 and torch.equal(seen[0], seen[2])


def test_batches_of_unequal_shape_are_not_the_same_tensordict() -> None:
    collector = Collector(
        cartpole,
        frames_per_batch=20,
        total_frames=50,
        allow_partial_batch=True,
        return_same_td=True,
    )
    batches = list(collector)
    assert batches[0] is batches[1] and [batch.numel() for batch in batches] == [20, 20, 10]


@pytest.mark.parametrize(
    ("argument", "fixed", "other"),
    [
        ("use_buffers", True, False),
        ("extend_buffer", True, False),
        ("local_init_rb", True, False),
        ("no_cuda_sync", False, True),
        ("num_sub_threads", 1, 2),
        ("num_threads", None, 1),
        ("collector_class", None, Collector),
    ],
)
def test_a_warning_says_what_is_not_done_as_told(argument, fixed, other) -> None:
    quiet(lambda: Collector(cartpole, frames_per_batch=20, **{argument: fixed}))
    with pytest.warns(UserWarning, match=f"{argument} has no effect: ") as told:
        Collector(cartpole, frames_per_batch=20, **{argument: other})
    assert len(told) == 1 and told[0].filename == __file__


@pytest.mark.parametrize(
    "given", [{"exploration_mode": "mode"}, {"num_envs": 2, "frames_per_batch": 21}]
)
@pytest.mark.parametrize("kind", CLASSES)
def test_a_warning_points_to_the_line_of_the_call(kind, given) -> None:
    with pytest.warns(
        match="exploration_mode is called exploration_type now|frames_per_batch=21 cannot be split"
    ) as told:
        build(kind, **given).shutdown()
    assert [warning.filename for warning in told] == [__file__]


@pytest.mark.parametrize(
    ("kind", "why"), [(SerialEnv, "in this process"), (ParallelEnv, "process")]
)
def test_environments_in_lockstep_warn_of_what_has_no_effect(kind, why) -> None:
    quiet(lambda: kind(2, cartpole, shared_memory=True, num_threads=None, daemon=False))
    for name, value in {
        "mp_start_method": "spawn",
        "shared_memory": False,
        "num_threads": 2,
    }.items():
        with pytest.warns(UserWarning, match=f"{name} has no effect: .*{why}"):
            kind(2, cartpole, **{name: value})
    with pytest.raises(TypeError, match=f"{kind.__name__} has no argument colour"):
        kind(2, cartpole, colour=1)


@pytest.mark.parametrize(
    "env",
    ["CartPole-v1", GymEnv("CartPole-v1"), SerialEnv(2, cartpole), gymnasium.make("CartPole-v1")],
)
@pytest.mark.parametrize("kind", [Collector, MultiSyncCollector])
def test_arguments_need_a_function_that_takes_them(kind, env) -> None:
    with pytest.raises(
        RuntimeError,
        match="create_env_kwargs are arguments of a function that makes an environment, got",
    ):
        build(kind, env, create_env_kwargs={"frame_skip": 2})
    build(kind, env, create_env_kwargs={}).shutdown()


def test_what_cannot_be_used_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="a replay_buffer with a method extend, got list_iterator"):
        build(Collector, replay_buffer=iter([]))
    with pytest.raises(
        TypeError,
        match=r"expected something with a method collection_stopped\(\) as interruptor, got builtins.object",
    ):
        build(Collector, interruptor=object())
    with pytest.raises(
        TypeError,
        match="expected a WeightUpdaterBase of windrow.collectors as weight_updater, got builtins.int",
    ):
        build(Collector, weight_updater=3)
    assert build(Collector, interruptor=Interruptor()).interruptor is not None


@pytest.mark.parametrize("kind", CLASSES)
def test_frames_that_a_buffer_has_need_not_be_random(kind) -> None:
    def policy(td: Any) -> Any:
        return td.set("action", torch.ones(td.batch_size, dtype=torch.int64))

    def is_random(written: int) -> list[bool]:
        buffer = ReplayBuffer(storage=LazyTensorStorage(1000))
        if written:
            list(
                build(
                    Collector,
                    total_frames=written,
                    frames_per_batch=written,
                    replay_buffer=buffer,
                    seed=0,
                )
            )
        list(
            build(
                kind,
                cartpole,
                policy,
                total_frames=100,
                init_random_frames=60,
                replay_buffer=buffer,
                seed=0,
            )
        )
        ones = buffer[written:]["action"].reshape(5, 20)
        return [not bool(row.all()) for row in ones]

    assert is_random(0) == [True, True, True, False, False]
    assert is_random(30) == [True, True, False, False, False]
    assert is_random(60) == [False] * 5


def test_flags_are_there_without_being_added() -> None:
    env = GymEnv("CartPole-v1")
    assert env.add_truncated_keys() is env and "truncated" in env.done_keys
    batch = next(
        build(Collector, ParallelEnv(2, cartpole).add_truncated_keys(), set_truncated=True)
    )
    assert batch["next", "truncated"][:, -1].all() and batch["next", "done"][:, -1].all()


def test_steps_ahead_keep_the_name_of_time() -> None:
    batch = next(build(Collector, ParallelEnv(2, cartpole), postproc=MultiStep(0.9, 3)))
    assert batch.names == [None, "time"]
    with pytest.raises(TypeError, match="n_steps must be a whole number, got 2.5"):
        MultiStep(0.9, 2.5)


class Annotated(nn.Linear):
    def forward(self, anything: TensorDict) -> TensorDict:
        return anything.set("action", super().forward(anything["observation"]).argmax(-1))


class Undeclared(nn.Linear):
    in_keys, out_keys = ["observation"], ["action"]


def test_annotations_count_although_they_are_strings() -> None:
    assert isinstance(Annotated.forward.__annotations__["anything"], str)
    batch = next(build(Collector, cartpole, Annotated(4, 2)))
    assert batch["action"].shape == (20,)


def test_keys_of_what_is_no_module_of_tensordict_are_not_read() -> None:
    with pytest.raises(
        TypeError,
        match="Undeclared has in_keys and out_keys, but is no tensordict.nn.TensorDictModuleBase",
    ):
        build(Collector, cartpole, Undeclared(4, 2), policy_backend="torch")


def test_weights_for_workers_that_there_are_not() -> None:
    policy = nn.Linear(4, 2)
    for kind in CLASSES:
        collector = build(kind, cartpole, policy)
        for worker in (1, -1, [0, 1], {1: policy.state_dict()}):
            with pytest.raises(ValueError, match="there is no worker -?1: the collector has 1"):
                if isinstance(worker, dict):
                    collector.update_policy_weights_(worker)
                else:
                    collector.update_policy_weights_(worker_ids=worker)
        for nonsense in (1.5, "0", [1.0]):
            with pytest.raises(TypeError, match="expected the numbers of workers, or one, got"):
                collector.update_policy_weights_(worker_ids=nonsense)
        collector.update_policy_weights_(policy_or_weights=policy, worker_ids=0)
        collector.update_policy_weights_(worker_ids=(worker for worker in [0]))
        assert collector.policy_version == 2
        collector.receive_weights(policy)
        collector.reset(reset_idx=[True])
        collector.shutdown()


def test_hooks_of_weight_updaters_are_called() -> None:
    given, told = nn.Linear(4, 2), []

    class Halved(WeightUpdaterBase):
        def _get_server_weights(self) -> Any:
            return given.state_dict()

        def _maybe_map_weights(self, policy_or_weights: Any) -> Any:
            return {name: value / 2 for name, value in policy_or_weights.items()}

        def all_worker_ids(self) -> list[int]:
            return [0, 1]

        def _skip_update(self, worker_id: int) -> bool:
            return worker_id == 1

        def _sync_weights_with_worker(self, *, worker_id: Any = None, server_weights: Any) -> None:
            told.append(worker_id)
            super()._sync_weights_with_worker(worker_id=worker_id, server_weights=server_weights)

    policy = nn.Linear(4, 2)
    with MultiSyncCollector(
        [cartpole] * 2,
        policy,
        placement="threads",
        frames_per_batch=20,
        weight_updater=lambda: Halved(),
    ) as collector:
        collector.update_policy_weights_()
        assert told == [0]
        assert isinstance(collector.weight_updater, Halved)
    with build(Collector, cartpole, policy, weight_updater=VanillaWeightUpdater) as collector:
        collector.update_policy_weights_(given)
        assert torch.equal(policy.weight, given.weight)


def test_arguments_of_profiles_are_checked(tmp_path) -> None:
    def profiled(**options: Any) -> Any:
        collector = build(Collector, total_frames=100)
        collector.enable_profile(save_path=tmp_path / "{worker_idx}.json", **options)
        return collector.profile_config

    quiet(
        lambda: profiled(record_shapes=True, with_flops=False, activities=None, on_trace_ready=None)
    )
    config = profiled()
    assert (
        config.workers == [0]
        and config.should_profile_worker(0)
        and not config.should_profile_worker(1)
    )
    assert torch.profiler.ProfilerActivity.CPU in config.get_activities()
    assert config.profiler() is None and profiled(activities=["cpu"]).profiler() is not None
    with pytest.raises(TypeError, match="enable_profile has no argument colour"):
        profiled(colour=1)
    with pytest.raises(ValueError, match="warmup_rollouts must be 0 or more, got -1"):
        profiled(warmup_rollouts=-1)
    with pytest.raises(ValueError, match="num_rollouts=1 must be greater than warmup_rollouts=1"):
        profiled(num_rollouts=1)


def test_evaluators_end_within_a_time_and_know_one_model() -> None:
    policy = nn.Linear(4, 2)
    evaluator = Evaluator(cartpole, policy, num_trajectories=1)
    assert evaluator.evaluate(weights_dict={"policy": policy})["eval/num_episodes"] == 1
    with pytest.raises(KeyError, match="no model is called 'critic'"):
        evaluator.evaluate(weights_dict={"critic": policy})
    with pytest.raises(ValueError, match="timeout must be a number of seconds, 0 or more, got -1"):
        evaluator.shutdown(-1)
    evaluator.shutdown(timeout=10.0)


@pytest.mark.parametrize(
    "env", ["CartPole-v1", cartpole, cartpole(), gymnasium.make("CartPole-v1")]
)
def test_a_policy_is_made_for_the_environment_of_an_evaluator(env) -> None:
    def make(env: Any) -> Any:
        seen.append(env)
        return nn.Linear(4, 2)

    seen: list[Any] = []
    with Evaluator(env, policy_factory=make, num_trajectories=1) as evaluator:
        assert evaluator.evaluate()["eval/num_episodes"] == 1
    assert seen and all(hasattr(made, "reset") for made in seen)


@pytest.mark.parametrize("kind", CLASSES)
def test_nothing_is_seeded_reset_or_started_after_the_end(kind) -> None:
    collector = build(kind, replay_buffer=ReplayBuffer())
    collector.shutdown()
    for ask in (lambda: collector.set_seed(0), collector.reset, collector.start):
        with pytest.raises(RuntimeError, match="was shut down"):
            ask()
    assert collector.stats()["frames"] == 0 and "frames" in collector.state_dict()
    quiet(lambda: collector.shutdown(close_env=True))
    with pytest.warns(UserWarning, match="close_env has no effect"):
        collector.shutdown(close_env=False)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"frames_per_batch": -1},
            ValueError,
            "frames_per_batch must be a positive number, got -1",
        ),
        (
            {"frames_per_batch": [20, 0]},
            ValueError,
            "frames_per_batch must be a positive number, got 0",
        ),
        ({"trajs_per_batch": 0}, ValueError, "trajs_per_batch must be 1 or more, got 0"),
        (
            {"storing_device": ["cpu"] * 3},
            RuntimeError,
            "storing_device has 3 entries for 2 workers",
        ),
        ({"env_device": ["cpu"]}, RuntimeError, "env_device has 1 entries for 2 workers"),
    ],
)
def test_numbers_that_make_no_sense_are_named(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        MultiSyncCollector(
            [cartpole] * 2, None, **{"frames_per_batch": 20, "placement": "threads", **arguments}
        )


def test_environments_stay_on_the_cpu() -> None:
    quiet(lambda: build(Collector, env_device="cpu", device="cpu"))
    with pytest.warns(
        UserWarning, match="env_device has no effect: environments are stepped on the CPU"
    ):
        build(Collector, env_device="meta")


class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reward: float, observation: float) -> None:
        self.reward, self.observation = reward, observation
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample() * 0, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        broken = self.count == 4
        observation = self.observation_space.sample() * (self.observation if broken else 0.0)
        return observation, self.reward if broken else 0.0, False, False, {}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ((1.0, float("nan")), 'observation "observation" is NaN'),
        ((float("inf"), 0.0), "the reward is inf"),
    ],
)
def test_numbers_that_are_none_are_noticed_where_that_is_asked_for(broken, message) -> None:
    next(build(Collector, lambda: Broken(*broken)))
    checked = TransformedEnv(Broken(*broken), FiniteTensorDictCheck())
    with pytest.raises(
        WorkerError,
        match=f"worker 0, environment 0, episode 0, step 3: .*{message}, expected a finite number",
    ):
        next(build(Collector, checked))


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, tensordict: Any) -> Any:
        return tensordict.set("scaled", tensordict["observation"] * self.scale)


def test_a_postproc_goes_where_batches_are_and_returns_them() -> None:
    postproc = Scaling()
    batch = next(build(Collector, storing_device="meta", postproc=postproc))
    assert batch["scaled"].is_meta and postproc.scale.is_meta
    assert not next(build(Collector, postproc=Scaling()))["scaled"].is_meta
    with pytest.raises(
        TypeError, match="postproc must return the batch, as a TensorDict, got NoneType"
    ):
        next(build(Collector, postproc=lambda batch: None))
