"""Arguments, iteration, control and life of collectors."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from cartpole import cartpole, in_threads
from windrow import collectors
from windrow.collectors import (
    AsyncCollector,
    BaseCollector,
    Collector,
    Interruptor,
    MultiAsyncCollector,
    MultiCollector,
    MultiSyncCollector,
    RandomPolicy,
)
from windrow.data import LazyTensorStorage, ReplayBuffer, SliceSampler
from windrow.envs import ParallelEnv

ALL = [
    pytest.param(lambda **arguments: Collector(cartpole, **arguments), id="Collector"),
    pytest.param(
        lambda **arguments: AsyncCollector(cartpole, placement="threads", **arguments),
        id="AsyncCollector",
    ),
    pytest.param(
        lambda **arguments: MultiSyncCollector([cartpole] * 2, placement="threads", **arguments),
        id="MultiSyncCollector",
    ),
    pytest.param(
        lambda **arguments: MultiAsyncCollector([cartpole] * 2, placement="threads", **arguments),
        id="MultiAsyncCollector",
    ),
]


def test_batches_are_rounded_up_to_what_environments_in_lockstep_can_deliver() -> None:
    with (
        pytest.warns(UserWarning, match="batches have 102 frames"),
        Collector(ParallelEnv(6, cartpole), frames_per_batch=100, total_frames=300) as collector,
    ):
        assert [tuple(batch.shape) for batch in collector] == [(6, 17), (6, 17), (6, 16)]


@pytest.mark.parametrize("make", ALL)
def test_every_collector_delivers_exactly_its_frames(make) -> None:
    with make(frames_per_batch=40, total_frames=120) as collector:
        assert len(collector) == 3
        assert [batch.numel() for batch in collector] == [40, 40, 40]
        assert collector.next() is None
        assert collector.stats()["frames"] == 120


@pytest.mark.parametrize("make", ALL)
def test_a_for_loop_goes_on_where_another_was_left(make) -> None:
    with make(frames_per_batch=40, total_frames=120) as collector:
        for _ in collector:
            break
        assert sum(1 for _ in collector.iterator()) == 2


@pytest.mark.parametrize("make", ALL)
def test_a_collector_that_was_shut_down_says_so(make) -> None:
    collector = make(frames_per_batch=40)
    next(collector)
    collector.shutdown()
    collector.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        next(collector)


@pytest.mark.parametrize("make", ALL)
def test_an_endless_collector_has_no_length(make) -> None:
    with (
        make(frames_per_batch=40, total_frames=-1) as collector,
        pytest.raises(TypeError, match="endless"),
    ):
        len(collector)


@pytest.mark.parametrize("make", ALL)
def test_unknown_arguments_are_all_named(make) -> None:
    with pytest.raises(TypeError, match="has no argument colour, flavour"):
        make(frames_per_batch=40, flavour=1, colour=2)


def test_legacy_names_are_the_same_classes() -> None:
    assert collectors.SyncDataCollector is Collector
    assert collectors.aSyncDataCollector is AsyncCollector
    assert collectors.MultiSyncDataCollector is MultiSyncCollector
    assert collectors.MultiaSyncDataCollector is MultiAsyncCollector
    assert collectors._MultiDataCollector is MultiCollector
    assert collectors.DataCollectorBase is collectors.BaseCollector


def test_multi_collector_chooses_by_sync() -> None:
    for sync, kind in ((True, MultiSyncCollector), (False, MultiAsyncCollector)):
        with MultiCollector(
            [cartpole] * 2, placement="threads", frames_per_batch=20, total_frames=40, sync=sync
        ) as collector:
            assert type(collector) is kind
            assert sum(batch.numel() for batch in collector) == 40
    with pytest.raises(TypeError, match="sync=True or sync=False"):
        MultiCollector([cartpole], placement="threads", frames_per_batch=20)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"frames_per_batch": 300, "total_frames": 1000},
            ValueError,
            "use 900 or 1200.*set allow_partial_batch",
        ),
        ({"frames_per_batch": 0}, ValueError, "frames_per_batch must be a positive"),
        ({}, TypeError, "^Collector: missing a required argument: 'frames_per_batch'$"),
        ({"frames_per_batch": None}, TypeError, "frames_per_batch is missing"),
        ({"frames_per_batch": 10, "reset_when_done": False}, ValueError, "reset_when_done"),
        (
            {"frames_per_batch": 10, "split_trajs": True, "track_traj_ids": False},
            ValueError,
            "split_trajs needs track_traj_ids",
        ),
        ({"frames_per_batch": 10, "traj_format": "cat"}, ValueError, "trajs_per_batch"),
        (
            {"frames_per_batch": 10, "exploration_type": "greedy"},
            ValueError,
            "RANDOM, MODE, MEAN or DETERMINISTIC",
        ),
        ({"frames_per_batch": 10, "policy_backend": "jax"}, ValueError, "policy_backend"),
        ({"frames_per_batch": 10, "num_workers": 3}, ValueError, "one worker, got 3"),
        ({"frames_per_batch": 10.5}, TypeError, "whole number"),
        ({"frames_per_batch": 10, "on_loss": "ignore"}, ValueError, "on_loss"),
    ],
)
def test_wrong_arguments_are_explained(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        Collector(cartpole, **arguments)


def test_wrong_numbers_of_workers_are_explained() -> None:
    with pytest.raises(ValueError, match="num_workers=3, but create_env_fn is a list of 2"):
        MultiSyncCollector([cartpole] * 2, num_workers=3, placement="threads", frames_per_batch=20)
    with pytest.raises(TypeError, match="or num_workers"):
        MultiSyncCollector(cartpole, placement="threads", frames_per_batch=20)
    with pytest.raises(ValueError, match="cat_results"):
        MultiAsyncCollector([cartpole] * 2, placement="threads", frames_per_batch=20, cat_results=1)
    with pytest.raises(ValueError, match="preemptive_threshold"):
        MultiSyncCollector(
            [cartpole] * 2, placement="threads", frames_per_batch=20, preemptive_threshold=2.0
        )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no CUDA device"):
        Collector(cartpole, frames_per_batch=10, device="cuda")
    assert next(Collector(cartpole, frames_per_batch=10, device="cpu")).numel() == 10


def test_the_last_batch_may_be_short_and_shares_uneven() -> None:
    collector = Collector(cartpole, frames_per_batch=30, total_frames=70, allow_partial_batch=True)
    assert [batch.numel() for batch in collector] == [30, 30, 10]
    with MultiSyncCollector(
        [cartpole] * 2, placement="threads", frames_per_batch=[30, 10], total_frames=40
    ) as collector:
        assert [batch.numel() for batch in collector] == [40]


def test_seeds_repeat_a_run_and_count_environments() -> None:
    with MultiSyncCollector(
        [cartpole] * 3, placement="threads", frames_per_batch=60, num_envs=2
    ) as collector:
        assert collector.set_seed(1) == 6
        first = next(collector)["observation"].clone()
        assert collector.set_seed(1, static_seed=True) == 1
        same = next(collector)["observation"]
        assert torch.equal(same[0, 0], same[1, 0])
        collector.set_seed(1)
        assert torch.equal(next(collector)["observation"][:, 0], first[:, 0])
    with MultiSyncCollector(
        [cartpole] * 3, placement="threads", frames_per_batch=60, num_envs=2, seed=1
    ) as collector:
        assert torch.equal(next(collector)["observation"], first)


def test_workers_do_not_change_the_data() -> None:
    def frames(workers: int) -> torch.Tensor:
        with MultiSyncCollector(
            [cartpole] * workers,
            num_envs=4 // workers,
            placement="threads",
            frames_per_batch=80,
            seed=5,
        ) as collector:
            return next(collector)["observation"]

    assert torch.equal(frames(1), frames(2)) and torch.equal(frames(2), frames(4).reshape(4, 20, 4))


def test_hooks_and_postproc_see_each_batch_in_order() -> None:
    seen: list[object] = []

    def postproc(batch):
        batch.set("double", 2 * batch["next", "reward"])
        return batch.set("_scratch", batch["done"])

    collector = Collector(
        cartpole,
        frames_per_batch=10,
        total_frames=20,
        postproc=postproc,
        pre_collect_hook=lambda: seen.append("before"),
        post_collect_hook=seen.append,
    )
    batches = list(collector)
    assert [type(entry) for entry in seen] == [str, TensorDict, str, TensorDict]
    assert seen[1] is batches[0] and seen[3] is batches[1]
    assert "double" in batches[0].keys() and "_scratch" not in batches[0].keys()


def test_an_error_in_postproc_ends_the_collector() -> None:
    def postproc(batch):
        raise KeyError("lost")

    collector = Collector(cartpole, frames_per_batch=10, postproc=postproc)
    with pytest.raises(KeyError, match="lost"):
        next(collector)
    with pytest.raises(RuntimeError, match="ended by an error: .*lost"):
        next(collector)


def test_rollout_is_outside_of_the_count() -> None:
    collector = Collector(
        cartpole, frames_per_batch=10, total_frames=20, postproc=lambda batch: batch.empty()
    )
    assert collector.rollout()["observation"].shape == (10, 4)
    assert collector.stats()["frames"] == 0
    assert len(list(collector)) == 2


def test_a_saved_state_goes_on() -> None:
    def make() -> Collector:
        return Collector(
            cartpole, torch.nn.Linear(4, 2), frames_per_batch=10, total_frames=40, seed=1
        )

    first = make()
    next(first), next(first)
    state = first.state_dict()
    assert state["frames"] == 20 and set(state["policy_state_dict"]) == {"weight", "bias"}
    second = make()
    second.load_state_dict(state)
    assert [batch.numel() for batch in second] == [10, 10]
    assert torch.equal(second.policy.weight, first.policy.weight)


def test_limits_of_trajectories_are_counted_and_marked() -> None:
    batch = next(Collector("Pendulum-v1", frames_per_batch=20, max_frames_per_traj=5))
    assert batch["step_count"].flatten().tolist() == [0, 1, 2, 3, 4] * 4
    assert batch["next", "truncated"].flatten().nonzero().flatten().tolist() == [4, 9, 14, 19]


def test_set_truncated_marks_the_end_and_compact_obs_drops_what_follows() -> None:
    batch = next(
        Collector("Pendulum-v1", frames_per_batch=20, set_truncated=True, compact_obs=True)
    )
    assert bool(batch["next", "truncated"][-1]) and not batch["next", "terminated"].any()
    assert set(batch["next"].keys()) == {"reward", "done", "terminated", "truncated"}


def test_random_frames_come_first(network) -> None:
    def actions(**arguments) -> list[torch.Tensor]:
        source = Collector(
            cartpole, network, frames_per_batch=50, total_frames=100, seed=1, **arguments
        )
        return [batch["action"].clone() for batch in source]

    warm, plain = actions(init_random_frames=50), actions(init_random_frames=-1)
    assert not torch.equal(warm[0], plain[0])


def test_an_interruptor_cuts_batches_short() -> None:
    interruptor = Interruptor()
    collector = Collector(cartpole, frames_per_batch=50, interruptor=interruptor)
    interruptor.stop_collection()
    batch = next(collector)
    assert batch.shape == (50,) and interruptor.collection_stopped()
    # There is one frame, and what stands for the others says so.
    assert batch["collector", "mask"].tolist() == [True] + [False] * 49
    assert batch["collector", "traj_ids"].tolist() == [0] + [-1] * 49
    interruptor.start_collection()
    batch = next(collector)
    assert batch.shape == (50,) and ("collector", "mask") not in batch.keys(True)
    assert collector.stats()["frames"] == 51


def test_start_fills_a_buffer_in_the_background() -> None:
    class Buffer:
        def __init__(self) -> None:
            self.frames = 0
            self.full = threading.Event()

        def extend(self, batch) -> None:
            self.frames += batch.numel()
            if self.frames >= 100:
                self.full.set()

    buffer = Buffer()
    collector = Collector(cartpole, frames_per_batch=20, total_frames=100, replay_buffer=buffer)
    collector.start()
    assert buffer.full.wait(60)
    collector.async_shutdown()
    assert buffer.frames == 100 and not collector.is_running()
    with pytest.raises(RuntimeError, match="start needs a replay_buffer"):
        Collector(cartpole, frames_per_batch=20).start()
    inline = Collector(cartpole, frames_per_batch=20, total_frames=40, replay_buffer=buffer)
    assert list(inline) == [None, None]


def test_an_error_in_the_background_surfaces_once() -> None:
    class Buffer:
        def extend(self, batch) -> None:
            raise OSError("disk full")

    collector = Collector(cartpole, frames_per_batch=20, replay_buffer=Buffer())
    collector.start()
    while collector.is_running():
        time.sleep(0.01)
    with pytest.raises(OSError, match="disk full"):
        next(collector)
    collector.shutdown()


def test_a_paused_collector_starts_nothing() -> None:
    with MultiAsyncCollector([cartpole] * 2, placement="threads", frames_per_batch=20) as collector:
        next(collector)
        with collector.pause():
            frames = collector.stats()["frames"]
            assert collector.stats()["frames"] == frames
            with pytest.raises(RuntimeError, match="paused"):
                next(collector)
        assert next(collector).numel() == 20


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("through_python", [False, True])
def test_a_pause_holds_the_background_and_no_more(make, through_python: bool) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=8)
    collector = make(
        frames_per_batch=20,
        replay_buffer=buffer,
        postproc=(lambda batch: batch) if through_python else None,
    )
    collector.start()
    buffer.sample()
    for _ in range(3):
        with collector.pause():
            written = buffer.write_count
            time.sleep(0.01)
            assert buffer.write_count == written
            with pytest.raises(RuntimeError, match="paused"), collector.pause():
                pass
        while buffer.write_count == written:
            time.sleep(0.001)
    assert collector.is_running()
    collector.async_shutdown()


def test_profiles_are_written(tmp_path: Path) -> None:
    path = tmp_path / "worker_{worker_idx}.json"
    with MultiSyncCollector(
        [cartpole] * 2, placement="threads", frames_per_batch=20, total_frames=100
    ) as collector:
        collector.enable_profile(workers=[0, 1], num_rollouts=3, warmup_rollouts=1, save_path=path)
        assert collector.profile_config.should_profile_worker(1)
        for _ in collector:
            pass
        assert set(collector.profile_summary()) == {0, 1}
        with pytest.raises(RuntimeError, match="before the first batch"):
            collector.enable_profile()
    for worker in (0, 1):
        assert '"EnvStep"' in Path(collector.profile_config.get_save_path(worker)).read_text()
    with pytest.raises(ValueError, match="warmup_rollouts"):
        Collector(cartpole, frames_per_batch=20).enable_profile(num_rollouts=1, warmup_rollouts=1)


def test_a_random_policy_is_the_engines() -> None:
    def actions(policy) -> torch.Tensor:
        return next(Collector("Pendulum-v1", policy, frames_per_batch=20, seed=2))["action"]

    assert torch.equal(actions(None), actions(RandomPolicy()))
    with pytest.raises(RuntimeError, match="action_spec"):
        RandomPolicy()({})


def test_repr_tells_the_state() -> None:
    collector = Collector(cartpole, frames_per_batch=20, total_frames=40)
    next(collector)
    assert (
        repr(collector)
        == "Collector(20 frames of 40, 20 a batch, 1 workers inline, 1 environments, policy=native)"
    )


def test_a_learner_publishes_while_the_background_looks_for_new_weights() -> None:
    network = torch.nn.Linear(4, 2)
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=8)
    collector = Collector(
        cartpole, network, frames_per_batch=20, replay_buffer=buffer, policy_backend="native"
    )
    collector.start()
    for _ in range(300):
        with torch.no_grad():
            network.weight.add_(0.01)
        collector.update_policy_weights_()
        buffer.sample()
    assert collector.policy_version >= 300
    collector.async_shutdown()


@pytest.mark.parametrize("kind", [Collector, AsyncCollector, collectors.SyncDataCollector])
def test_what_has_no_effect_is_told_at_the_line_that_says_it(kind) -> None:
    with pytest.warns(
        UserWarning, match="use_buffers has no effect: batches are always written in place"
    ) as told:
        kind(cartpole, frames_per_batch=20, use_buffers=False, **in_threads(kind)).shutdown()
    assert told[0].filename == __file__
    with pytest.raises(TypeError, match=f"{kind.__name__} has no argument frames_per_batches"):
        kind(cartpole, frames_per_batch=20, frames_per_batches=20)


@pytest.mark.parametrize("place", ["postproc", "pre_collect_hook", "post_collect_hook"])
@pytest.mark.parametrize("placement", ["inline", "threads"])
@pytest.mark.parametrize(
    "ask", [next, BaseCollector.rollout, lambda collector: collector.pause().__enter__()]
)
def test_a_hook_that_would_wait_for_itself_is_told(place: str, placement: str, ask) -> None:
    told: list[str] = []

    def asks(*batch):
        with pytest.raises(RuntimeError) as caught:
            ask(collector)
        told.append(str(caught.value))
        return batch[0] if batch else None

    collector = Collector(
        cartpole, frames_per_batch=10, total_frames=20, placement=placement, **{place: asks}
    )
    assert len(list(collector)) == 2
    assert len(told) == 2 and all("from within its own hooks" in message for message in told)


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("placement", ["inline", "threads"])
def test_a_hook_can_end_the_collector(started: bool, placement: str) -> None:
    frames: list[int] = []

    def ends(batch):
        frames.append(batch.numel())
        collector.shutdown()
        return batch

    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    arguments = {"replay_buffer": buffer} if started else {}
    collector = Collector(
        cartpole, frames_per_batch=10, placement=placement, postproc=ends, **arguments
    )
    if started:
        collector.start()
        while collector.is_running():
            time.sleep(0.001)
        assert buffer.write_count == 10
    else:
        assert [batch.numel() for batch in (next(collector),)] == [10]
        with pytest.raises(RuntimeError, match="shut down"):
            next(collector)
    collector.shutdown()
    assert frames == [10]


def test_a_collector_that_was_started_goes_on_though_nobody_refers_to_it() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000))
    Collector(cartpole, frames_per_batch=10, total_frames=500, replay_buffer=buffer).start()
    gc.collect()
    while buffer.stats()["writers"]:
        time.sleep(0.001)
    assert buffer.write_count == 500


@pytest.mark.parametrize("placement", ["inline", "threads"])
def test_threads_that_share_a_collector_have_a_batch_each(placement: str) -> None:
    collector = Collector(cartpole, frames_per_batch=10, total_frames=400, placement=placement)
    batches: list[TensorDict] = []
    threads = [threading.Thread(target=lambda: batches.extend(collector)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(batch.numel() for batch in batches) == collector.stats()["frames"] == 400


def test_whole_trajectories_have_no_holes_where_a_rollout_took_frames() -> None:
    collector = Collector(
        "CartPole-v1",
        frames_per_batch=5,
        trajs_per_batch=1,
        traj_format="cat",
        max_frames_per_traj=12,
        seed=1,
    )
    for number in range(20):
        if number % 3 == 1:
            collector.rollout()
        steps = next(collector)["step_count"].flatten().tolist()
        assert steps == list(range(len(steps)))


def test_no_slice_joins_what_comes_before_and_after_a_rollout() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(1000), sampler=SliceSampler(slice_len=6), batch_size=600
    )
    collector = Collector(
        "Pendulum-v1", frames_per_batch=10, max_frames_per_traj=100, replay_buffer=buffer, seed=1
    )
    for _ in range(10):
        next(collector)
        collector.rollout()
    steps = buffer.sample()["step_count"].reshape(-1, 6)
    assert torch.equal(steps, steps[:, :1] + torch.arange(6))


def test_ids_after_a_rollout_are_new_also_where_a_state_was_loaded_in_between() -> None:
    def build() -> Collector:
        return Collector("Pendulum-v1", frames_per_batch=10, num_envs=2, seed=1)

    collector, other = build(), build()
    before = {*next(collector)["collector", "traj_ids"].flatten().tolist()}
    collector.rollout()
    other.load_state_dict(collector.state_dict())
    after = [{*next(one)["collector", "traj_ids"].flatten().tolist()} for one in (collector, other)]
    assert after[0] == after[1] and not before & after[0]


@pytest.mark.parametrize("given", [{"trajs_per_batch": 6}, {"split_trajs": True}], ids=str)
def test_padding_has_an_id_that_no_trajectory_has(given: dict[str, Any]) -> None:
    batch = next(Collector("CartPole-v1", num_envs=4, frames_per_batch=400, seed=0, **given))
    mask, ids = batch["collector", "mask"], batch["collector", "traj_ids"]
    assert not mask.all() and (ids[~mask] == -1).all() and (ids[mask] >= 0).all()
