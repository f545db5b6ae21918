"""What is asked of collectors about their workers."""

from __future__ import annotations

import threading
import time
import warnings
from functools import partial
from typing import Any

import gymnasium
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from cartpole import cartpole, in_threads
from ledger import Ledger, length
from waiting import until
from windrow.collectors import (
    AsyncCollector,
    Collector,
    MultiAsyncCollector,
    MultiSyncCollector,
    VanillaWeightUpdater,
)
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.envs import ParallelEnv

FIGURES = {"frames", "parts", "restarts", "alive", "pid", "waited", "policy_version", "policy_lag"}


def versions(collector: Any) -> list[int]:
    return [worker["policy_version"] for worker in collector.map_fn("stats")]


# Figures


@pytest.mark.parametrize("kind", [Collector, AsyncCollector])
def test_the_only_worker_is_the_first(kind: Any) -> None:
    with kind(cartpole, frames_per_batch=20, total_frames=60, **in_threads(kind)) as collector:
        list(collector)
        figures = collector.stats(workers="per_worker")
        assert set(figures) == {f"worker_0/{name}" for name in FIGURES}
        assert (figures["worker_0/frames"], figures["worker_0/parts"]) == (60, 3)
        assert figures["worker_0/alive"] is True


def test_figures_of_workers_add_up() -> None:
    with MultiSyncCollector(
        [cartpole] * 3, placement="threads", frames_per_batch=[30, 20, 10], total_frames=120
    ) as collector:
        list(collector)
        total, each, both = (
            collector.stats(workers) for workers in ("aggregate", "per_worker", "both")
        )
        assert [each[f"worker_{worker}/frames"] for worker in range(3)] == [60, 40, 20]
        assert total["workers_waited"] == pytest.approx(
            sum(each[f"worker_{worker}/waited"] for worker in range(3))
        )
        assert set(both) == set(total) | set(each)
        assert collector.stats() == total
        for wrong in ("all", "", None):
            with pytest.raises(ValueError, match='"aggregate", "per_worker" or "both", got'):
                collector.stats(workers=wrong)


def test_a_lost_worker_is_told_apart() -> None:
    class Faulty(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            raise OSError("broken")

    def faulty() -> Any:
        return Faulty(Ledger())

    collector = MultiSyncCollector(
        [Ledger, faulty],
        placement="threads",
        frames_per_batch=20,
        total_frames=60,
        on_loss="continue",
    )
    with collector:
        list(collector)
        figures = collector.stats("both")
        assert [figures[f"worker_{worker}/alive"] for worker in (0, 1)] == [True, False]
        assert (figures["workers_alive"], figures["worker_1/frames"]) == (1, 0)


def failing(after: int, failed: threading.Event | None = None, waits: bool = False) -> Any:
    """Fails in step ``after``, and tells so; or waits in its second batch until another has
    failed.
    """

    class Failing(gymnasium.Wrapper):
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            if waits and self.steps == 21:
                assert failed.wait(60)
            if self.steps == after:
                if failed is not None:
                    failed.set()
                raise OSError("broken")
            return super().step(action)

    return Failing(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize("after", [1, 7, 25])
@pytest.mark.parametrize(
    "goes", ["sync", "stack", "async", "one batch", "trajectories", "start", "start python"]
)
def test_a_collector_says_once_that_it_goes_on_without_a_worker(goes: str, after: int) -> None:
    kind = MultiAsyncCollector if goes == "async" else MultiSyncCollector
    buffer = ReplayBuffer(storage=LazyTensorStorage(100)) if "start" in goes else None
    options: dict[str, Any] = {
        "stack": {"cat_results": "stack"},
        "one batch": {"frames_per_batch": 60, "total_frames": 60},
        "trajectories": {"trajs_per_batch": 2},
        "start python": {"postproc": lambda batch: batch},
    }.get(goes, {})
    options = {"frames_per_batch": 20, "total_frames": 120, "replay_buffer": buffer, **options}
    # Whoever is first delivers: worker 0 waits, or it might take all frames before worker 1 comes
    # to that step.
    failed = threading.Event()
    envs = [partial(failing, 0, failed, goes == "async"), partial(failing, after, failed)]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with kind(envs, placement="threads", on_loss="continue", **options) as collector:
            if buffer is None:
                list(collector)
            else:
                collector.start()
                while collector.is_running():
                    time.sleep(0.01)
            assert ["worker 1" in loss for loss in collector.losses()] == [
                True
            ] and collector.losses() == []
    said = [str(warning.message) for warning in told if "on_loss" in str(warning.message)]
    assert (
        len(said) == 1
        and "worker 1" in said[0]
        and "OSError: broken" in said[0]
        and "on_loss=3" in said[0]
    )
    short = goes not in ("async", "trajectories")
    assert ("fewer than frames_per_batch" if short else "batches come from 1 of 2 workers") in said[
        0
    ]
    assert ("allow_partial_batch=False" in said[0]) == short


class Lost(Ledger):
    """Is lost in its 27th step."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 27:
            raise OSError("broken")
        return super().step(action)


@pytest.mark.parametrize("cat_results", [None, "stack", -1])
@pytest.mark.parametrize("placement", ["threads", "inline"])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_batches_keep_their_size_where_the_others_fill_the_share_of_a_lost_worker(
    placement: str, cat_results: Any, lost: int
) -> None:
    envs = [Lost if worker == lost else Ledger for worker in range(3)]
    options = {
        "frames_per_batch": 30,
        "total_frames": 300,
        "cat_results": cat_results,
        "placement": placement,
    }
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with MultiSyncCollector(
            envs, None, on_loss="continue", allow_partial_batch=False, **options
        ) as collector:
            batches = list(collector)
            assert [batch.shape for batch in batches] == [collector.fake_tensordict().shape] * 10
            assert collector.stats()["workers_alive"] == 2
    said = [str(warning.message) for warning in told if "on_loss" in str(warning.message)]
    assert (
        len(said) == 1
        and "batches come from 2 of 3 workers" in said[0]
        and "allow_partial_batch" not in said[0]
    )
    # Each environment's frames are there once, row by row and batch by batch in the order of time.
    at: dict[int, list[int]] = {}
    for batch in batches:
        frames = (
            batch[key].flatten(0, batch.ndim - 1).int().tolist()
            for key in ("observation", ("next", "observation"))
        )
        for now, then, done in zip(*frames, batch["next", "done"].flatten().tolist(), strict=True):
            number, episode, step = now
            assert [episode, step] == at.get(number, [0, 0])
            assert then == [number, episode, step + 1] and done == (
                step + 1 == length(number, episode)
            )
            at[number] = [episode + 1, 0] if done else [episode, step + 1]
    assert len(at) == 3


@pytest.mark.parametrize("on_loss", ["raise", "continue", 3])
def test_nothing_is_said_where_no_worker_is_missed(on_loss: Any) -> None:
    fails = iter([7] if on_loss == 3 else [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "environments written in Python")
        envs = [partial(failing, 0), lambda: failing(next(fails, 0))]
        with MultiSyncCollector(
            envs, placement="threads", frames_per_batch=20, total_frames=40, on_loss=on_loss
        ) as collector:
            assert [batch.numel() for batch in collector] == [20, 20]


def test_workers_tell_whose_weights_act(network: nn.Module) -> None:
    with MultiSyncCollector(
        [cartpole] * 2, network, placement="threads", frames_per_batch=20
    ) as collector:
        next(collector)
        collector.update_policy_weights_()
        figures = collector.stats("per_worker")
        assert [figures[f"worker_{worker}/policy_lag"] for worker in (0, 1)] == [1, 1]
        next(collector)
        assert versions(collector) == [1, 1]


# Shapes


def shape(batch: Any) -> Any:
    leaves = {key: (value.shape, value.dtype) for key, value in batch.items(True, True)}
    return batch.batch_size, batch.names, batch.device, leaves


def doubled(batch: Any) -> Any:
    return batch.set("doubled", batch["observation"] * 2).set("_private", batch["action"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Collector(cartpole, frames_per_batch=20),
        lambda: Collector(
            ParallelEnv(3, cartpole), frames_per_batch=30, max_frames_per_traj=5, device="cpu"
        ),
        lambda: Collector(
            cartpole, frames_per_batch=20, compact_obs=True, track_policy_version=True
        ),
        lambda: Collector(cartpole, frames_per_batch=20, postproc=doubled, track_traj_ids=False),
        lambda: AsyncCollector("Pendulum-v1", frames_per_batch=20, set_truncated=True),
        lambda: MultiSyncCollector(
            [cartpole] * 2,
            placement="threads",
            frames_per_batch=40,
            num_envs=2,
            cat_results="stack",
        ),
        lambda: MultiSyncCollector(
            [cartpole] * 2, placement="threads", frames_per_batch=40, num_envs=2, cat_results=-1
        ),
        lambda: MultiAsyncCollector([cartpole] * 2, placement="threads", frames_per_batch=40),
    ],
)
def test_a_fake_batch_is_shaped_as_a_real_one(make: Any) -> None:
    with make() as collector:
        fake = collector.fake_tensordict()
        assert collector.stats()["frames"] == 0
        real = next(collector)
        assert shape(fake) == shape(real)
        assert not fake["next", "reward"].any()
        assert shape(collector.fake_tensordict()) == shape(real)


def test_what_a_policy_writes_is_in_a_fake_batch() -> None:
    def act(observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(observation.shape[:-1], dtype=torch.int64), observation.sum(
            -1, keepdim=True
        )

    policy = TensorDictModule(act, ["observation"], ["action", ("extra", "sum")])
    collector = Collector(cartpole, policy, frames_per_batch=20)
    fake = collector.fake_tensordict()
    assert fake["extra", "sum"].shape == (20, 1)
    assert shape(fake) == shape(next(collector))


def test_whole_trajectories_have_no_shape_before_they_are_there() -> None:
    with pytest.raises(ValueError, match="whole trajectories has no shape"):
        Collector(cartpole, frames_per_batch=20, trajs_per_batch=2).fake_tensordict()


# Environments and policies


class Policy(nn.Module):
    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.name = name
        self.layers = nn.ModuleList([nn.Linear(3, 2)])

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.layers[0](observation)


def test_attributes_of_the_first_worker() -> None:
    policy = Policy("given")
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    with Collector(Ledger, policy, frames_per_batch=20, replay_buffer=buffer) as collector:
        next(collector)
        assert isinstance(collector.env, Ledger)
        assert collector.getattr_env("episode") > 0
        assert collector.getattr_policy("name") == "given"
        assert collector.getattr_rb("write_count") == 20
        assert collector.get_model("policy") is policy
        for ask in (collector.getattr_env, collector.getattr_policy, collector.getattr_rb):
            with pytest.raises(AttributeError, match="flavour"):
                ask("flavour")
        with pytest.raises(KeyError, match="the only one is 'policy'"):
            collector.get_model("critic")


def test_environments_that_functions_do_not_make() -> None:
    env = cartpole()
    assert Collector(env, frames_per_batch=20).env is env
    assert Collector("CartPole-v1", frames_per_batch=20).getattr_env("action_spec").n == 2
    with MultiSyncCollector("CartPole-v1", num_workers=2, frames_per_batch=20) as collector:
        assert [tuple(size) for size in collector.get_distant_attr("env.batch_size")] == [(), ()]


def test_random_actions_have_no_model() -> None:
    collector = Collector(cartpole, frames_per_batch=20)
    with pytest.raises(ValueError, match="acts at random"):
        collector.get_model("policy")
    with pytest.raises(AttributeError, match="no replay buffer"):
        collector.getattr_rb("write_count")


def test_each_worker_has_what_was_made_for_it() -> None:
    names = iter("abcd")

    def policy() -> Policy:
        return Policy(next(names))

    with MultiSyncCollector(
        Ledger,
        num_workers=2,
        num_envs=3,
        policy_factory=policy,
        placement="threads",
        frames_per_batch=24,
        cat_results="stack",
    ) as collector:
        batch = next(collector)
        numbers = batch["observation"][..., 0, 0].int().tolist()
        assert collector.get_distant_attr("env.number") == [
            number for of_worker in numbers for number in of_worker
        ]
        assert sorted(collector.get_distant_attr("policy.name")) == ["a", "b"]
        assert collector.getattr_policy("name") == collector.get_distant_attr("policy.name")[0]
        assert collector.get_distant_attr("worker_idx") == [0, 1]
        weights = collector.get_distant_attr("policy.layers[0].weight")
        assert [weight.shape for weight in weights] == [(2, 3), (2, 3)]


def test_a_worker_that_started_over_has_another_environment() -> None:
    made: list[Any] = []

    class Once(Ledger):
        def step(self, action: Any) -> Any:
            if self is made[0] and self.step_count == 1:
                raise OSError("broken")
            return super().step(action)

    def once() -> Any:
        made.append(Once())
        return made[-1]

    with Collector(once, frames_per_batch=20, on_loss=1) as collector:
        assert collector.env is made[0]
        next(collector)
        assert len(made) == 2 and collector.env is made[1]


# Calls


def test_paths_of_a_direct_collector_begin_at_itself() -> None:
    collector = Collector(Ledger, Policy(), frames_per_batch=20, worker_idx=7)
    next(collector)
    assert collector.get_distant_attr("worker_idx") == 7
    assert collector.get_distant_attr("policy.layers[0].bias") is collector.policy.layers[0].bias
    assert collector.map_fn("env.has_wrapper_attr", [("number",), ("flavour",)]) == [True, False]
    first, second = (TensorDict.from_module(Policy()).data for _ in range(2))
    assert collector.map_fn("update_policy_weights_", [(first,), (second,)]) == [None, None]
    assert torch.equal(collector.policy.layers[0].weight, second["layers", "0", "weight"])
    assert collector.policy_version == 2


def test_methods_are_called_once_for_each_worker() -> None:
    policy = Policy()
    with MultiSyncCollector(
        [Ledger] * 2, policy, placement="threads", frames_per_batch=20
    ) as collector:
        next(collector)
        weights = [TensorDict.from_module(Policy()).data for _ in range(2)]
        collector.map_fn("update_policy_weights_", [(weights[0],), (weights[1],)])
        next(collector)
        assert versions(collector) == [1, 2]
        collector.map_fn(
            "update_policy_weights_", list_of_kwargs=[{"weights": weights[1]}, {"policy": policy}]
        )
        next(collector)
        assert versions(collector) == [3, 4]
        for wrong in ([(weights[0],)], [(weights[0],)] * 3):
            with pytest.raises(ValueError, match=f"each of 2 workers, got {len(wrong)}"):
                collector.map_fn("update_policy_weights_", wrong)
        with pytest.raises(ValueError, match="one length, got 2 args and 1 kwargs"):
            collector.map_fn("stats", [(), ()], [{}])


def test_paths_that_lead_nowhere() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    with MultiSyncCollector(
        [Ledger] * 2, placement="threads", frames_per_batch=20, replay_buffer=buffer
    ) as collector:
        next(collector)
        assert collector.cascade_execute("replay_buffer.stats")["frames"] == 20
        assert collector.cascade_execute("replay_buffer.write_count") == 20
        assert collector.cascade_execute("stats", workers="per_worker")["worker_1/frames"] == 10
        with pytest.raises(ValueError, match="write_count cannot be called"):
            collector.cascade_execute("replay_buffer.write_count", 1)
        with pytest.raises(AttributeError, match="flavour"):
            collector.get_distant_attr("env.flavour")
        with pytest.raises(AttributeError, match="worker_idx cannot be called"):
            collector.map_fn("worker_idx")
        for path in ("", "env.", ".env", "env..x", "env[0", "[0]", "env number"):
            with pytest.raises(ValueError, match="expected a path such as"):
                collector.get_distant_attr(path)
        with pytest.raises(ValueError, match="a number or a quoted name in brackets, got 'x'"):
            collector.get_distant_attr("env[x]")


def test_an_updater_can_be_changed(network: nn.Module) -> None:
    collector = Collector(cartpole, network, frames_per_batch=20)
    assert collector.weight_updater is None
    collector.weight_updater = VanillaWeightUpdater
    assert collector.weight_updater.collector is collector
    collector.update_policy_weights_()


@pytest.mark.parametrize("kind", [Collector, MultiAsyncCollector])
def test_a_paused_collector_can_be_looked_at(kind) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000))
    with kind(
        [cartpole], frames_per_batch=10, replay_buffer=buffer, **in_threads(kind)
    ) as collector:
        collector.start()
        until(lambda: buffer.write_count)
        with collector.pause():
            found = collector.get_distant_attr("replay_buffer.write_count")
            assert found in (buffer.write_count, [buffer.write_count])
