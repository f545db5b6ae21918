"""A run that is cut between two batches goes on bit for bit."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import NormalizeObservation, RecordEpisodeStatistics, TimeLimit
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

import windrow
from windrow.collectors import (
    AsyncCollector,
    Collector,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.envs import Compose, GymEnv, RewardSum, StepCounter, TransformedEnv, VecNormV2


class Walk(gymnasium.Env[Any, Any]):
    """Walks at random, and says its state."""

    observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    place = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1)
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += 2 * int(action) - 1 + self.np_random.normal()
        return self.seen(), -abs(self.place), abs(self.place) > 6, False, {}

    def seen(self) -> Any:
        return np.array([self.place, self.place**2 % 1], np.float32)


class StatefulWalk(Walk):
    def get_state(self) -> float:
        return self.place

    def set_state(self, place: float) -> None:
        self.place = place


class DictWalk(Walk):
    def state_dict(self) -> dict[str, float]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.place = state["place"]


def wrapped(cls: type[Walk] = StatefulWalk) -> Any:
    return NormalizeObservation(RecordEpisodeStatistics(TimeLimit(cls(), 13)))


def native() -> Any:
    transforms = Compose(StepCounter(31), RewardSum(), VecNormV2(in_keys=["observation"]))
    return TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), transforms)


class Sampling(nn.Module):
    """Draws an action by torch's generator."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.net = nn.Linear(inputs, 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Categorical(logits=self.net(observation)).sample()


def written(state: dict[str, Any]) -> dict[str, Any]:
    """``state`` as it is written to a file and read again."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file)
    return loaded


def same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        for key in a.keys(True, True):
            assert torch.equal(a[key], b[key]), key


def goes_on(make: Any, *, pickle: bool = False, cuts: tuple[int, ...] = (0, 1, 3, 2)) -> None:
    """Checks that collectors that ``make`` makes go on from each other's states as if they had not
    been cut.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", windrow.Warning)
        for message in (".*take turns", ".*leave out, in info", ".*called in Python"):
            warnings.filterwarnings("ignore", message=message, category=windrow.Warning)
        with make() as whole:
            # What is drawn while a policy is bound is another run's concern.
            state = written(
                {"collector": whole.state_dict(pickle=pickle), "generator": torch.get_rng_state()}
            )
            expected = [next(whole).clone() for _ in range(sum(cuts))]
        batches = []
        for cut in cuts:
            with make() as collector:
                collector.load_state_dict(state["collector"])
                torch.set_rng_state(state["generator"])
                batches += [next(collector).clone() for _ in range(cut)]
                saved = collector.state_dict(pickle=pickle)
                assert "simulators" in saved
                state = written({"collector": saved, "generator": torch.get_rng_state()})
    same(batches, expected)


@pytest.mark.parametrize(
    ("env", "placement"),
    [
        *((env, "threads") for env in (native, StatefulWalk, DictWalk, wrapped)),
        (wrapped, "processes"),
    ],
)
def test_environments_go_on_in_workers(env, placement) -> None:
    def make() -> Any:
        return MultiSyncCollector([env] * 2, None, frames_per_batch=60, seed=2, placement=placement)

    goes_on(make, cuts=(1, 2) if placement == "processes" else (0, 1, 3, 2))


@pytest.mark.parametrize("env", [native, StatefulWalk, wrapped])
def test_environments_go_on_with_a_policy_that_torch_samples(env) -> None:
    torch.manual_seed(0)
    policy = Sampling(4 if env is native else 2)
    goes_on(lambda: Collector(env, policy, frames_per_batch=30, seed=1, policy_backend="torch"))


def test_environments_without_methods_are_pickled_where_the_user_asks_for_it() -> None:
    goes_on(lambda: Collector(Walk, None, frames_per_batch=30, seed=1), pickle=True)
    goes_on(
        lambda: Collector(
            lambda: gymnasium.make("CartPole-v1", max_episode_steps=17),
            None,
            frames_per_batch=30,
            seed=1,
        ),
        pickle=True,
    )


def test_torchs_generator_goes_on_in_worker_processes() -> None:
    torch.manual_seed(0)
    policy = Sampling(2)

    def make() -> Any:
        return MultiSyncCollector(
            [StatefulWalk] * 2,
            policy,
            frames_per_batch=60,
            seed=2,
            placement="processes",
            policy_backend="torch",
        )

    goes_on(make, cuts=(2, 2))


class Remembering(nn.Module):
    """Sums up what it observes, and decides by the sum."""

    def forward(
        self, observation: torch.Tensor, total: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = observation if total is None else total + observation
        return (total.sum(-1) * 100).long() % 2, total


def test_a_recurrent_policy_remembers_what_it_has_seen() -> None:
    policy = TensorDictModule(
        Remembering(), in_keys=["observation", "total"], out_keys=["action", ("next", "total")]
    )
    goes_on(
        lambda: Collector(StatefulWalk, policy, frames_per_batch=30, seed=1, policy_backend="torch")
    )
    goes_on(lambda: Collector(native(), policy, frames_per_batch=30, seed=1))


def test_whole_trajectories_go_on_with_those_that_were_begun() -> None:
    goes_on(lambda: Collector(native, None, frames_per_batch=20, trajs_per_batch=2, seed=1))


def streams(batches: list[Any], count: int) -> dict[int, torch.Tensor]:
    """The observations of each of ``count`` environments, one behind the other."""
    found: dict[int, list[torch.Tensor]] = {}
    for batch in batches:
        envs = batch["collector", "traj_ids"] % count
        for env in envs.unique().tolist():
            rows = envs == env
            found.setdefault(env, []).append(batch["next", "observation"][rows])
    return {env: torch.cat(parts) for env, parts in found.items()}


@pytest.mark.parametrize(
    ("kind", "placement"),
    [
        (AsyncCollector, "threads"),
        (MultiAsyncCollector, "threads"),
        (MultiAsyncCollector, "processes"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*take turns")
def test_each_environment_goes_on_exactly_where_workers_run_ahead(kind, placement) -> None:
    count = 1 if kind is AsyncCollector else 2

    def make() -> Any:
        envs = StatefulWalk if count == 1 else [StatefulWalk] * count
        return kind(envs, None, frames_per_batch=20, seed=4, placement=placement)

    batches: list[Any] = []
    with make() as whole:
        # On a busy machine, a worker may come late.
        while len(batches) < 24 or len(streams(batches, count)) < count:
            batches.append(next(whole).clone())
        expected = streams(batches, count)
    batches = []
    state = None
    for _ in range(2):
        with make() as collector:
            if state is not None:
                collector.load_state_dict(state)
            batches += [next(collector).clone() for _ in range(5)]
            state = written(collector.state_dict())
    compared = 0
    found = streams(batches, count)
    for env in found:
        both = min(len(found[env]), len(expected[env]))
        assert torch.equal(found[env][:both], expected[env][:both])
        compared += both
    assert compared > 0


@pytest.mark.filterwarnings("ignore:.*take turns")
def test_a_started_collector_goes_on_where_its_last_write_ended() -> None:
    from windrow.data import LazyTensorStorage, ReplayBuffer

    def run(frames: int, state: Any) -> tuple[Any, Any]:
        buffer = ReplayBuffer(storage=LazyTensorStorage(4000))
        collector = AsyncCollector(
            StatefulWalk,
            None,
            frames_per_batch=20,
            total_frames=4000,
            seed=4,
            placement="threads",
            replay_buffer=buffer,
        )
        if state is not None:
            collector.load_state_dict(state)
        collector.start()
        while len(buffer) < frames:
            assert collector.is_running() or len(buffer) >= frames
        state = written(collector.state_dict())
        collector.shutdown()
        return state, buffer[: int(state["frames"]) if frames < 200 else len(buffer)]

    buffer = ReplayBuffer(storage=LazyTensorStorage(4000))
    with Collector(StatefulWalk, None, frames_per_batch=20, total_frames=4000, seed=4) as whole:
        for batch in whole:
            buffer.extend(batch)
    state, first = run(60, None)
    _, second = run(100, state)
    seen = torch.cat([first["next", "observation"], second["next", "observation"]])
    assert torch.equal(seen, buffer[: len(seen)]["next", "observation"])


def test_what_cannot_be_saved_is_told_once_and_begins_new_episodes() -> None:
    with Collector(Walk, None, frames_per_batch=30, seed=1) as collector:
        next(collector)
        with pytest.warns(
            windrow.Warning, match=r"simulators are not saved.*Walk.*get_state and set_state"
        ) as told:
            state = collector.state_dict()
            collector.state_dict()
        assert len(told) == 1
        assert "simulators" not in state
        with Collector(Walk, None, frames_per_batch=30, seed=1) as other:
            other.load_state_dict(state)
            assert abs(next(other)["observation"][0, 0]) <= 1


def test_what_cannot_be_pickled_is_told_by_its_name() -> None:
    class Opened(Walk):
        def __init__(self) -> None:
            self.file = open("/dev/null")

    with Collector(Opened, None, frames_per_batch=30) as collector:
        with pytest.warns(
            windrow.Warning, match="Opened cannot be saved, since a part of it cannot be pickled"
        ):
            collector.state_dict(pickle=True)
        collector_env = next(collector)
        assert len(collector_env) == 30


@pytest.mark.filterwarnings("ignore:.*take turns")
def test_a_state_that_does_not_fit_is_an_error_that_changes_nothing() -> None:
    with Collector(StatefulWalk, None, frames_per_batch=30, seed=1) as collector:
        next(collector)
        state = collector.state_dict()
    with (
        Collector(wrapped, None, frames_per_batch=30, seed=5) as other,
        Collector(wrapped, None, frames_per_batch=30, seed=5) as twin,
    ):
        next(other), next(twin)
        with pytest.raises(ValueError, match="other wrappers"):
            other.load_state_dict(state)
        same([next(other)], [next(twin)])
    with MultiSyncCollector(
        [StatefulWalk] * 2, None, frames_per_batch=30, placement="threads"
    ) as several:
        with pytest.raises(ValueError, match="expected the state of 2 workers, got that of 1"):
            several.load_state_dict(state)


CHILD = """
import sys, torch
sys.path[:0] = {paths!r}
from resume.test_exact import *
policy = nn.Linear(4, 2)
with Collector(native, None, frames_per_batch=30, seed=1) as collector:
    collector.load_state_dict(torch.load({state!r}))
    torch.save([next(collector).to_dict() for _ in range(3)], {batches!r})
"""


def test_a_new_process_goes_on(tmp_path: Path) -> None:
    with Collector(native, None, frames_per_batch=30, seed=1) as collector:
        next(collector)
        torch.save(collector.state_dict(), tmp_path / "state.pt")
        expected = [next(collector).clone() for _ in range(3)]
    paths = [str(Path(__file__).parents[1]), *sys.path]
    files = {"state": str(tmp_path / "state.pt"), "batches": str(tmp_path / "batches.pt")}
    subprocess.run([sys.executable, "-c", CHILD.format(paths=paths, **files)], check=True)
    batches = [TensorDict(batch, [30]) for batch in torch.load(tmp_path / "batches.pt")]
    same(batches, expected)
