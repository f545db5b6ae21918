"""Collectors in actors of Ray: what they deliver, what is counted when actors are lost, and what is
left behind.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from counter import Counter, fails, have_torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs import NextObservationDelta

from waiting import until
from windrow.collectors import Collector, MultiAsyncCollector, MultiSyncCollector, RayCollector
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.envs import GymEnv, TransformedEnv

pytestmark = pytest.mark.usefixtures("cluster")

Build = Callable[..., RayCollector]


@pytest.fixture(scope="module")
def shared(build_once: Build) -> RayCollector:
    """A collector of several tests, with a native policy that always takes the first action."""
    net = nn.Linear(4, 2)
    with torch.no_grad():
        net.weight.zero_(), net.bias.copy_(torch.tensor([1.0, 0.0]))
    act = TensorDictModule(net, in_keys=["observation"], out_keys=["action"])
    return build_once("CartPole-v1", act, sync=True, track_policy_version=True)


def differing() -> TransformedEnv:
    return TransformedEnv(GymEnv("Pendulum-v1"), NextObservationDelta(in_keys=["observation"]))


# Batches


def test_a_synchronous_batch_is_that_of_two_local_workers(shared: RayCollector) -> None:
    shared.set_seed(3)
    before = shared.stats()
    with MultiSyncCollector(
        ["CartPole-v1"] * 2, shared.policy, frames_per_batch=20, seed=3, track_policy_version=True
    ) as local:
        for _ in range(3):
            own, other = next(shared), next(local)
            assert own.batch_size == other.batch_size and set(own.keys(True, True)) == set(
                other.keys(True, True)
            )
            assert torch.equal(own["observation"], other["observation"]) and torch.equal(
                own["action"], other["action"]
            )
            # No trajectory is in both shares.
            ids = own["collector", "traj_ids"]
            assert not set(ids[:10].tolist()) & set(ids[10:].tolist())
    assert shared.stats()["frames"] == before["frames"] + 60
    each = {
        figures for name, figures in shared.stats("per_worker").items() if name.endswith("/frames")
    }
    assert each == {shared.stats()["frames"] // 2}


def test_a_bar_shows_the_frames_of_actors(build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        sum(
            batch.numel()
            for batch in build(
                "CartPole-v1", sync=True, frames_per_batch=100, total_frames=400, progress=True
            )
        )
        == 400
    )
    assert "400/400" in (last := capsys.readouterr().err.splitlines()[-1]) and "return=" in last


def test_actors_deliver_text_and_tensors_whose_shape_changes(build: Build) -> None:
    telling: Any = pytest.importorskip("telling")
    assert telling.has_both(next(build(telling.Both, None, sync=True)))


def test_actors_deliver_differences_where_the_environment_asks_for_them(build: Build) -> None:
    with MultiSyncCollector(
        [differing] * 2, frames_per_batch=20, seed=3, compact_obs=True
    ) as local:
        expected = next(local)
    batch = next(build(differing, sync=True, compact_obs=True, seed=3))
    assert set(batch.keys(True, True)) == set(expected.keys(True, True))
    # The second actor draws its actions from a seed of its own.
    own, other = (of["next", "delta", "observation"][:10] for of in (batch, expected))
    assert own.dtype == torch.float16 and torch.equal(own, other)


def test_batches_of_whoever_is_first_and_the_end(build: Build) -> None:
    collector = build(
        [partial(Counter, None), partial(Counter, None)],
        num_collectors=None,
        total_frames=50,
        allow_partial_batch=True,
    )
    batches = list(collector)
    assert [batch.numel() for batch in batches] == [20, 20, 10] and collector.stats()[
        "frames"
    ] == 50
    for seed in (3, 4):
        steps = torch.cat(
            [
                batch["next", "observation"][:, 1]
                for batch in batches
                if batch["observation"][0, 0] == seed
            ]
            or [torch.ones(1)]
        )
        assert torch.equal(steps, torch.arange(1, len(steps) + 1).double())
    assert collector.next() is None


def test_an_actor_with_native_environments_and_policy_imports_no_torch(
    shared: RayCollector,
) -> None:
    next(shared)
    shared.update_policy_weights_()
    next(shared)
    assert shared.policy_backend == "native"
    assert have_torch(shared) == [False] * 2


class Constant(nn.Module):
    """Torch evaluates it."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.chosen.long()[0].expand(observation.shape[:-1]).clone()


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_weights_act_from_the_next_batch_on(
    build: Build, request: pytest.FixtureRequest, backend: str
) -> None:
    if backend == "native":
        collector = request.getfixturevalue("shared")
        weights = {"weight": torch.zeros(2, 4), "bias": torch.tensor([0.0, 1.0])}
    else:
        act = TensorDictModule(Constant(), in_keys=["observation"], out_keys=["action"])
        collector = build(
            "CartPole-v1",
            act,
            num_collectors=1,
            policy_backend=backend,
            track_policy_version=True,
            sync=True,
        )
        weights = {"chosen": torch.ones(1)}

    def actions() -> set[int]:
        batch = next(collector)["action"]
        return set(
            batch.argmax(-1).flatten().tolist()
            if batch.ndim > 1 and batch.shape[-1] == 2
            else batch.flatten().tolist()
        )

    collector.update_policy_weights_()
    version = collector.policy_version
    assert collector.policy_backend == backend and actions() == {0}
    collector.update_policy_weights_({f"module.{name}": value for name, value in weights.items()})
    assert actions() == {1} and collector.policy_version == version + 1
    with pytest.raises(ValueError, match="weight"):
        collector.update_policy_weights_({"module.other": torch.zeros(1)})
    assert collector.policy_version == version + 1 and actions() == {1}
    with pytest.raises(ValueError, match="no worker 2"):
        collector.update_policy_weights_(weights, worker_ids=[2])
    collector.increment_version()
    batch = next(collector)
    assert collector.policy_version == version + 2 and batch[
        "policy_version"
    ].unique().tolist() == [version + 2]
    collector.update_policy_weights_()


def test_the_workers_of_an_actor_share_a_batch_or_bring_one_each(build: Build) -> None:
    for kind in (MultiSyncCollector, MultiAsyncCollector):
        collector = build(
            "CartPole-v1",
            num_collectors=1,
            collector_class=kind,
            num_workers_per_collector=2,
            total_frames=60,
        )
        assert [batch.numel() for batch in collector] == [20, 20, 20]
        assert collector.stats()["num_envs"] == 2


def test_what_cannot_be_built_is_told(build: Build) -> None:
    with pytest.raises(Exception, match="no such place"):
        build(fails, num_collectors=1)
    with pytest.raises(RuntimeError, match="claim 100 CPU together"):
        build("CartPole-v1", remote_configs={"num_cpus": 50})
    with pytest.raises(TypeError, match="a RayCollector sends create_env_fn to each actor"):
        lock = __import__("threading").Lock()
        build(lambda: lock)
    with pytest.raises(ValueError, match="num_collectors=3"):
        build(["CartPole-v1"] * 2, num_collectors=3)


# The rest


def test_seeds_states_and_answers(build: Build) -> None:
    collector = build(partial(Counter, None), sync=True)
    assert next(collector)["observation"][[0, 10], 0].tolist() == [3, 4]
    assert collector.set_seed(70) == 71
    assert next(collector)["observation"][[0, 10], 0].tolist() == [70, 71]
    assert collector.get_distant_attr("env.number") == [70, 71]
    assert collector.fake_tensordict().batch_size == torch.Size([20])
    state = collector.state_dict()
    assert state["frames"] == 40 and state["seed"] == 70
    next(collector)
    collector.load_state_dict(state)
    next(collector)
    assert collector.stats()["frames"] == 60
    collector.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        next(collector)


def test_start_fills_a_buffer_of_this_process(build: Build) -> None:
    seen: list[int] = []
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=10)
    collector = build(
        "CartPole-v1",
        replay_buffer=buffer,
        total_frames=400,
        pre_collect_hook=lambda: seen.append(1),
    )
    collector.start()
    # It waits for a writer.
    assert buffer.sample().batch_size == torch.Size([10])
    with collector.pause():
        before = buffer.write_count
        time.sleep(0.05)
        assert buffer.write_count == before
    until(lambda: not collector.is_running())
    assert (
        buffer.write_count == 400 == collector.stats()["frames"] and collector.stats()["completed"]
    )
    assert len(seen) == collector.stats()["batches"] == 20
    buffer.empty()
    with pytest.raises(RuntimeError, match="no writer is attached"):
        buffer.sample()


def test_collector_dispatches_by_backend(cluster: Any) -> None:
    options = {"ray_init_config": None, "remote_configs": {"num_cpus": 0.5}}
    many: Any = Collector(
        "CartPole-v1",
        backend="ray",
        num_collectors=1,
        sync=True,
        frames_per_batch=20,
        total_frames=20,
        backend_options=options,
    )
    assert isinstance(many, RayCollector) and [batch.numel() for batch in many] == [20]
    many.shutdown()
    assert cluster.is_initialized()


OWN = """
import ray
from windrow.collectors import Evaluator, RayCollector
from windrow.modules import RandomPolicy

options = dict(num_collectors=1, frames_per_batch=10, total_frames=20)
config = {"address": "local", "num_cpus": 1, "object_store_memory": 80 << 20, "log_to_driver": False}
first = RayCollector("CartPole-v1", ray_init_config=config, remote_configs={"num_cpus": 0.5}, **options)
second = RayCollector("CartPole-v1", remote_configs={"num_cpus": 0.5}, **options)
assert [batch.numel() for batch in first] == [10, 10]
first.shutdown()
assert ray.is_initialized() and next(second).numel() == 10
second.shutdown()
assert not ray.is_initialized()
evaluator = Evaluator("Pendulum-v1", RandomPolicy(), backend="ray", num_trajectories=10**6)
assert evaluator.trigger_eval() and ray.is_initialized()
print("ended")
"""


def test_a_ray_that_was_started_ends_with_the_last_and_with_the_program() -> None:
    ran = subprocess.run([sys.executable, "-c", OWN], capture_output=True, text=True, timeout=300)
    assert ran.stdout.strip().endswith("ended") and "Traceback" not in ran.stderr, ran.stderr


def test_the_device_of_environments_is_warned_of(build: Build) -> None:
    with pytest.warns(
        UserWarning, match="env_device has no effect: environments are stepped on the CPU"
    ):
        build("CartPole-v1", num_collectors=1, env_device="meta")
