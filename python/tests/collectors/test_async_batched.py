"""Environments in threads that ask one policy: what is collected, and how."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import pytest
import torch
from tensordict.nn import (
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torch.distributions import Normal

from accepted import accepted_by
from cartpole import cartpole
from collectors.conftest import Build
from recurrent import cell, check
from windrow.collectors import AsyncBatchedCollector, Collector, _async_batched, _base
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.envs import GymEnv, RewardSum, SerialEnv, TransformedEnv


class Pushes(nn.Module):
    """Pushes to where the pole falls, or to one side where ``bias`` is large. Exact for any number
    of rows.
    """

    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(bias))
        self.calls: list[tuple[int, ...]] = []
        self.threads: set[str] = set()

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        self.calls.append(tuple(observation.shape))
        self.threads.add(threading.current_thread().name)
        return (observation[..., 2] + observation[..., 3] + self.bias > 0).long()


def by_env(batches: list[Any]) -> dict[int, Any]:
    """The frames of each environment, in the order in which they were delivered."""
    frames = torch.cat(
        [
            batch.select(
                "observation",
                "action",
                "env_index",
                "policy_version",
                ("collector", "traj_ids"),
                "next",
            )
            for batch in batches
        ]
    )
    return {int(env): frames[frames["env_index"] == env] for env in frames["env_index"].unique()}


@pytest.mark.parametrize(
    ("envs", "frames", "total", "workers"),
    [(1, 7, 21, 1), (8, 200, 400, 4), (6, 10, 30, 3), (4, 7, 14, 4), (64, 100, 300, 16)],
)
def test_batches_have_exactly_the_frames_that_were_asked_for(
    build: Build, envs, frames, total, workers
) -> None:
    collector = build(envs, frames_per_batch=frames, total_frames=total)
    batches = list(collector)
    assert [batch.shape for batch in batches] == [(frames,)] * (total // frames)
    assert all(batch.names == ["time"] for batch in batches)
    stats = collector.stats()
    assert stats["num_envs"] == envs and stats["frames"] == total
    assert stats["workers"] == workers
    for batch in batches:
        ids = batch["collector", "traj_ids"]
        assert (
            torch.equal(batch["env_index"], ids % envs) and batch["env_index"].dtype == torch.int64
        )
        # The frames of an environment are side by side, and follow each other.
        for env in batch["env_index"].unique():
            places = (batch["env_index"] == env).nonzero().flatten()
            assert torch.equal(places, torch.arange(places[0], places[-1] + 1))
            own = batch[places]
            goes_on = ~own["next", "done"][:-1, 0]
            assert torch.equal(
                own["observation"][1:][goes_on], own["next", "observation"][:-1][goes_on]
            )


def test_native_environments_share_threads_unless_they_are_many(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert build(64, frames_per_batch=640).stats()["workers"] == 1
    assert build(64, frames_per_batch=640, max_batch_size=16).stats()["workers"] == 4
    cores = min(2, _async_batched.cores())
    assert build(128, frames_per_batch=640).stats()["workers"] == cores


def test_a_short_last_batch_is_exact_too(build: Build) -> None:
    batches = list(build(8, frames_per_batch=100, total_frames=250, allow_partial_batch=True))
    assert [batch.numel() for batch in batches] == [100, 100, 50]


@pytest.mark.parametrize("together", [None, 1])
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_each_environment_goes_as_it_would_alone(build: Build, backend, together) -> None:
    network = TensorDictModule(
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), ["observation"], ["action"]
    )
    policy = Pushes() if backend == "torch" else network
    options = {"policy_backend": backend, "exploration_type": "DETERMINISTIC"}
    collector = build(4, policy, max_batch_size=together, total_frames=480, **options)
    assert collector.policy_backend == backend
    batches = list(collector)
    for env, frames in by_env(batches).items():
        alone = Collector(
            cartpole, policy, frames_per_batch=len(frames), total_frames=-1, seed=3 + env, **options
        ).next()
        for key in (
            "observation",
            "action",
            ("next", "observation"),
            ("next", "reward"),
            ("next", "done"),
        ):
            assert torch.equal(frames[key], alone[key]), (env, key)


def test_a_seed_is_followed_by_the_same_random_actions_of_a_native_policy(
    build: Build, network
) -> None:
    actor = TensorDictSequential(
        TensorDictModule(network, ["observation"], ["logits"]),
        ProbabilisticTensorDictModule(
            ["logits"], ["action"], distribution_class=torch.distributions.Categorical
        ),
    )
    first, second = (
        by_env(list(build(4, actor, total_frames=400, max_batch_size=most))) for most in (None, 1)
    )
    assert len({int(action) for frames in first.values() for action in frames["action"]}) == 2
    for env in first.keys() & second.keys():
        count = min(len(first[env]), len(second[env]))
        for key in ("observation", "action"):
            assert torch.equal(first[env][key][:count], second[env][key][:count])


def test_the_module_is_called_in_one_thread_for_all_that_wait(build: Build) -> None:
    made: list[Pushes] = []

    def factory() -> Pushes:
        made.append(Pushes())
        return made[-1]

    list(
        build(
            4, None, policy_factory=factory, max_batch_size=3, frames_per_batch=20, total_frames=200
        )
    )
    assert len(made) == 1
    # The first call shows what the policy writes.
    calls = made[0].calls[1:]
    assert all(1 <= rows <= 3 and observation == 4 for rows, observation in calls)
    assert sum(rows for rows, _ in calls) >= 200 and len(made[0].threads) <= 2


def test_logits_act_by_the_largest(build: Build) -> None:
    network = nn.Linear(4, 2)
    policy = TensorDictModule(network, ["observation"], ["action"])
    for backend in ("torch", "native"):
        batch = build([lambda: GymEnv("CartPole-v1")] * 4, policy, policy_backend=backend).next()
        assert batch["action"].dtype == torch.int64 and (batch["action"].sum(-1) == 1).all()
        with torch.no_grad():
            logits = network(batch["observation"])
        margins = (logits[:, 0] - logits[:, 1]).abs() > 1e-4
        assert torch.equal(batch["action"].argmax(-1)[margins], logits.argmax(-1)[margins])


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_each_frame_has_the_version_that_acted(build: Build, backend) -> None:
    def policy(side: float) -> nn.Module:
        layer = nn.Linear(4, 2)
        with torch.no_grad():
            layer.weight.zero_()
            layer.bias.copy_(torch.tensor([-side, side]))
        return TensorDictModule(layer, ["observation"], ["action"])

    learner = policy(-1.0)
    collector = build(4, learner, policy_backend=backend, frames_per_batch=20)
    batches = [next(collector)]
    collector.update_policy_weights_(policy(1.0))
    assert collector.policy_version == 1
    while not (batches[-1]["policy_version"] == 1).all():
        batches.append(next(collector))
        assert len(batches) < 50
    # A change of the learner's own module is not seen before it is published.
    with torch.no_grad():
        learner.module.bias.copy_(torch.tensor([1.0, -1.0]))
    batches.append(next(collector))
    collector.update_policy_weights_()
    while not (batches[-1]["policy_version"] == 2).all():
        batches.append(next(collector))
        assert len(batches) < 100
    for frames in by_env(batches).values():
        versions = frames["policy_version"].flatten()
        assert (versions.diff() >= 0).all()
        assert torch.equal(frames["next", "policy_version"].flatten(), versions)
        assert torch.equal(frames["action"].flatten(), (versions == 1).long())
    assert collector.server_stats()["policy_version"] == 2
    with pytest.raises(ValueError, match="there is no worker 7"):
        collector.update_policy_weights_(learner, worker_ids=7)
    with pytest.raises(ValueError, match="policies of their own"):
        collector.update_policy_weights_(learner, worker_ids=0)


def test_a_started_collector_fills_a_buffer(build: Build) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=10)
    collector = build(4, Pushes(), total_frames=400, replay_buffer=buffer)
    collector.start()
    while collector.is_running():
        buffer.sample()
    collector.shutdown()
    frames = buffer[:]
    assert len(buffer) == 400 and torch.equal(
        frames["env_index"], frames["collector", "traj_ids"] % 4
    )
    assert {int(env) for env in frames["env_index"]} <= set(range(4))


def test_iteration_with_a_buffer_yields_nothing(build: Build) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000))
    assert list(build(2, replay_buffer=buffer, total_frames=80)) == [None, None]
    assert len(buffer) == 80


def test_whole_trajectories_come_one_by_one(build: Build) -> None:
    collector = build(4, Pushes(10.0), yield_completed_trajectories=True, total_frames=400)
    trajectories = list(collector)
    assert sum(map(len, trajectories)) + collector.stats()["dropped_frames"] == 400
    ids = []
    for trajectory in trajectories:
        assert trajectory.ndim == 1 and trajectory["next", "done"].flatten().tolist() == [False] * (
            len(trajectory) - 1
        ) + [True]
        assert torch.equal(trajectory["observation"][1:], trajectory["next", "observation"][:-1])
        own = trajectory["collector", "traj_ids"]
        assert (own == own[0]).all() and (trajectory["env_index"] == own[0] % 4).all()
        ids.append(int(own[0]))
    # Of each environment, all but the last, in order.
    episodes = defaultdict(list)
    for number in ids:
        episodes[number % 4].append(number // 4)
    assert all(found == list(range(len(found))) for found in episodes.values())


def test_split_trajectories_are_rows(build: Build) -> None:
    batch = build(4, Pushes(10.0), split_trajs=True).next()
    mask, ids = batch["collector", "mask"], batch["collector", "traj_ids"]
    assert batch.ndim == 2 and int(mask.sum()) == 40
    assert torch.equal(batch["env_index"][mask], ids[mask] % 4)


class Sampled(nn.Module):
    """Loc 0.25 and scale 1 of a torque, whatever is observed."""

    def __init__(self) -> None:
        super().__init__()
        self.extract = NormalParamExtractor()

    def forward(self, observation: torch.Tensor) -> Any:
        loc = torch.full_like(observation[..., :1], 0.25)
        return loc, torch.ones_like(loc)


def test_the_type_of_exploration_holds_in_the_server(build: Build) -> None:
    actor = TensorDictSequential(
        TensorDictModule(Sampled(), ["observation"], ["loc", "scale"]),
        ProbabilisticTensorDictModule(
            ["loc", "scale"], ["action"], distribution_class=Normal, default_interaction_type="mean"
        ),
    )
    pendulums = [lambda: GymEnv("Pendulum-v1")] * 4
    for backend in ("torch", "auto"):
        still = build(
            pendulums, actor, exploration_type="DETERMINISTIC", policy_backend=backend
        ).next()
        assert (still["action"] == 0.25).all()
        drawn = build(pendulums, actor, policy_backend=backend).next()
        assert drawn["action"].unique().numel() > 30


def test_a_saved_state_goes_on(build: Build) -> None:
    options = {"frames_per_batch": 20, "total_frames": 200}
    first = build(4, Pushes(), **options)
    before = [next(first) for _ in range(3)]
    first.update_policy_weights_(Pushes(10.0))
    state = first.state_dict()
    # They have frames that were collected ahead, with the weights before.
    del state["simulators"]
    first.shutdown()
    second = build(4, Pushes(), **options)
    second.load_state_dict(state)
    after = list(second)
    assert sum(batch.numel() for batch in after) == 140 and second.policy_version == 1
    assert all(
        (batch["policy_version"] == 1).all() and (batch["action"] == 1).all() for batch in after
    )
    seen = {int(number) for batch in before for number in batch["collector", "traj_ids"]}
    ids = torch.cat([batch["collector", "traj_ids"] for batch in after])
    assert not seen & set(ids.tolist())
    assert torch.equal(torch.cat([batch["env_index"] for batch in after]), ids % 4)


def test_functions_of_a_list_keep_their_places(build: Build) -> None:
    scales = [1.0, 2.0, 3.0, 4.0]

    def scaled(scale: float, more: float = 0.0) -> Any:
        return (
            TransformedEnv(cartpole(), RewardSum())
            if more
            else GymEnv("CartPole-v1", categorical_action_encoding=True, frame_skip=int(scale))
        )

    envs = [lambda scale=scale: scaled(scale) for scale in scales]
    for frames in (build(envs, Pushes(), frames_per_batch=40, total_frames=400)).iterator():
        # A reward for each skipped frame, until the pole falls.
        going = ~frames["next", "done"].flatten()
        assert torch.equal(
            frames["next", "reward"].flatten()[going], frames["env_index"][going] + 1.0
        )


def test_arguments_of_functions_keep_their_places(build: Build) -> None:
    made = lambda frame_skip: GymEnv("CartPole-v1", frame_skip=frame_skip)  # noqa: E731
    collector = build(
        [made] * 4, None, create_env_kwargs=[{"frame_skip": skip} for skip in (1, 2, 3, 4)]
    )
    batch = collector.next()
    going = ~batch["next", "done"].flatten()
    assert torch.equal(batch["next", "reward"].flatten()[going], batch["env_index"][going] + 1.0)
    with pytest.raises(ValueError, match="create_env_kwargs has 3 entries for 4 workers"):
        build([made] * 4, None, create_env_kwargs=[{}] * 3)


def test_ids_environments_and_batched_environments_may_be_given(build: Build) -> None:
    assert build(["CartPole-v1"] * 4).next()["action"].shape == (40,)
    assert build([GymEnv("CartPole-v1") for _ in range(4)]).next()["action"].shape == (40, 2)
    batched = build([SerialEnv(2, cartpole) for _ in range(2)], Pushes())
    assert batched.next().shape == (40,) and batched.stats()["num_envs"] == 4
    assert build(cartpole, num_workers=3, frames_per_batch=30).stats()["num_envs"] == 3


def test_a_seed_of_an_environment_is_taken(build: Build) -> None:
    envs = [GymEnv("CartPole-v1", categorical_action_encoding=True) for _ in range(2)]
    envs[0].set_seed(5)
    frames = by_env(list(build(envs, Pushes(), seed=None, total_frames=80)))
    expected = by_env(list(build(2, Pushes(), seed=5, total_frames=80)))
    assert all(
        torch.equal(frames[env]["observation"], expected[env]["observation"]) for env in frames
    )


def test_postproc_sees_flat_batches_and_their_environments(build: Build) -> None:
    seen = []

    def postproc(batch: Any) -> Any:
        seen.append((batch.shape, "env_index" in batch.keys()))
        return batch.select("env_index")

    collector = build(4, postproc=postproc, total_frames=80)
    assert [list(batch.keys()) for batch in collector] == [["env_index"]] * 2
    assert seen == [((40,), True)] * 2
    assert collector.fake_tensordict().shape == (40,)


def test_other_arguments_do_what_they_do_elsewhere(build: Build) -> None:
    collector = build(
        2, Pushes(), max_frames_per_traj=5, track_policy_version=False, compact_obs=True
    )
    batch = collector.next()
    assert (
        batch["step_count"].max() <= 5
        and "policy_version" not in batch.keys()
        and ("next", "observation") not in batch.keys(True)
    )
    assert "policy_version" not in build(2, Pushes(), policy_version_key=None).next().keys()
    assert "env_index" not in build(2, track_traj_ids=False).next().keys()
    assert (build(4, Pushes(10.0), init_random_frames=40).next()["action"] == 0).any()


def test_figures_of_the_server(build: Build) -> None:
    collector = build(4, Pushes(), frames_per_batch=20, total_frames=200)
    list(collector)
    stats = collector.server_stats(reset=True)
    assert (
        stats["rows"] >= 200
        and 1 <= stats["batches"] <= stats["requests"]
        and stats["failed_batches"] == 0
    )
    assert (
        stats["avg_batch_size"] == stats["rows"] / stats["batches"] and 0 < stats["batch_fill"] <= 1
    )
    for kind in ("queue", "forward"):
        assert 0 <= stats[f"p50_{kind}_ms"] <= stats[f"p95_{kind}_ms"]
    assert stats["requests_per_s"] > 0 and stats["policy_version"] == 0
    assert collector.server_stats()["rows"] == 0


def test_a_compiled_policy_takes_any_number_of_rows(build: Build, network: nn.Module) -> None:
    collector = build(
        3, network, compile_policy={"backend": "eager"}, frames_per_batch=30, total_frames=120
    )
    assert sum(batch.numel() for batch in collector) == 120 and collector.policy_backend == "torch"


@pytest.mark.parametrize("most", [None, 3])
def test_calls_of_a_cuda_graph_have_one_size(
    build: Build, monkeypatch: pytest.MonkeyPatch, most
) -> None:
    monkeypatch.setattr(_base, "warmup_of", lambda *_: None)
    made: list[Pushes] = []

    def factory() -> Pushes:
        made.append(Pushes())
        return made[-1]

    options = {"cudagraph_policy": True, "max_batch_size": most, "total_frames": 240}
    batches = list(build(4, None, policy_factory=factory, **options))
    assert set(made[0].calls) == {(most or 4, 4)}
    for env, frames in by_env(batches).items():
        alone = Collector(
            cartpole, Pushes(), frames_per_batch=len(frames), total_frames=-1, seed=3 + env
        ).next()
        for key in ("observation", "action", ("next", "reward"), ("next", "done")):
            assert torch.equal(frames[key], alone[key]), (env, key)
    frames = torch.cat(
        list(
            build(
                4,
                TensorDictModule(Carries(), Carries.in_keys, Carries.out_keys),
                policy_backend="torch",
                **options,
            )
        )
    )
    for env in range(4):
        own = frames[frames["env_index"] == env]
        goes_on = ~own["next", "done"][:-1, 0]
        assert (
            torch.equal(own["count"][1:][goes_on], own["count"][:-1][goes_on] + 1)
            and (own["count"][1:][~goes_on] == 0).all()
        )


class Carries(nn.Module):
    """Counts its steps."""

    in_keys = ["observation", "count"]
    out_keys = ["action", ("next", "count")]

    def forward(self, observation: torch.Tensor, count: torch.Tensor | None) -> Any:
        count = torch.zeros_like(observation[..., :1]) if count is None else count
        return (observation[..., 2] > 0).long(), count + 1


@pytest.mark.parametrize("most", [None, 1, 3])
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_each_environment_has_a_state_of_its_own(build: Build, backend, most) -> None:
    policy = (
        cell()
        if backend == "native"
        else TensorDictModule(Carries(), Carries.in_keys, Carries.out_keys)
    )
    collector = build(
        6,
        policy,
        policy_backend=backend,
        max_batch_size=most,
        max_frames_per_traj=7,
        total_frames=240,
    )
    assert collector.policy_backend == backend
    batches = list(collector)
    frames = torch.cat(batches)
    assert (frames["next", "step_count"] == 7).any()
    if backend == "native":
        return check(batches, cell(), ("hidden",))
    assert torch.equal(frames["count"], frames["step_count"].float())
    assert torch.equal(frames["next", "count"], frames["count"] + 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_batch_size": 0}, ValueError, "max_batch_size must be 1 or more"),
        ({"max_batch_size": 2, "min_batch_size": 3}, ValueError, "min_batch_size"),
        ({"server_timeout": -1.0}, ValueError, "server_timeout"),
        ({"server_timeout": "soon"}, TypeError, "server_timeout must be a number"),
        (
            {"backend": "ray"},
            ValueError,
            'backend must be "threading" or "multiprocessing", got \'ray\'',
        ),
        (
            {"placement": "inline"},
            ValueError,
            'placement="inline": workers of AsyncBatchedCollector are threads',
        ),
        (
            {"step_timeout": 5},
            ValueError,
            "step_timeout=5.*cannot be killed: leave it out, or take MultiAsyncCollector",
        ),
        ({"num_envs": 2}, ValueError, "num_envs=2: AsyncBatchedCollector takes a list"),
        ({"policy_factory": [Pushes, Pushes]}, TypeError, "policy_factory must be a function"),
        (
            {"policy_version_key": "version"},
            ValueError,
            'policy_version_key must be "policy_version" or None',
        ),
        (
            {"yield_completed_trajectories": True, "trajs_per_batch": 2},
            ValueError,
            "leave trajs_per_batch out",
        ),
        (
            {"cudagraph_policy": True},
            RuntimeError,
            "cudagraph_policy needs a CUDA device as policy_device",
        ),
        ({"max_batchsize": 2}, TypeError, "did you mean max_batch_size"),
        (
            {"total_frames": 50},
            ValueError,
            "total_frames=50 is not a multiple of frames_per_batch=40",
        ),
    ],
)
def test_wrong_arguments_are_named(build: Build, arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        build(2, None, **arguments)


def test_a_single_environment_needs_a_number() -> None:
    with pytest.raises(TypeError, match="AsyncBatchedCollector needs a list of environments"):
        AsyncBatchedCollector(cartpole, frames_per_batch=10)


def test_names_of_torchrl_are_accepted() -> None:
    names = "create_env_fn policy policy_factory frames_per_batch total_frames max_batch_size min_batch_size server_timeout transport device"
    more = "backend env_backend reset_at_each_iter postproc yield_completed_trajectories weight_sync create_env_kwargs replay_buffer"
    assert set((names + " " + more).split()) <= accepted_by(AsyncBatchedCollector)
    with pytest.warns(UserWarning, match="transport has no effect"):
        AsyncBatchedCollector([cartpole], frames_per_batch=10, transport="auto").shutdown()
