"""Running statistics of workers, evaluators and saved states."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import gymnasium
import numpy
import pytest
import torch
import torchrl.envs as theirs

import windrow.envs as own
from waiting import killed, until
from windrow.collectors import (
    AsyncCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.envs import (
    Compose,
    EnvCreator,
    GymEnv,
    GymWrapper,
    ParallelEnv,
    RewardSum,
    SerialEnv,
    TransformedEnv,
    VecNorm,
    VecNormV2,
)


def normed() -> TransformedEnv:
    return TransformedEnv(
        GymEnv("Pendulum-v1"), Compose(VecNormV2(in_keys=["observation"], decay=0.99), RewardSum())
    )


def count(env: Any) -> int:
    saved = env.transform[0].state_dict()["_extra_state"]
    return int(saved["count.-|-.observation"]) if saved else 0


@pytest.mark.parametrize("placement", ["threads", "processes"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_workers_of_one_environment_share_its_statistics(placement: str, num_envs: int) -> None:
    env = normed()
    with MultiSyncCollector(
        [env] * 2, None, frames_per_batch=60, num_envs=num_envs, placement=placement
    ) as collector:
        for number in (1, 2):
            batch = next(collector)
            # Each of the environments was reset once.
            assert count(env) >= 60 * number + 2 * num_envs
        assert bool(batch["observation"].isfinite().all())
        assert count(env) == 120 + 2 * num_envs


def numbers(env: Any) -> list[torch.Tensor]:
    return [
        torch.as_tensor(value) for value in env.transform[0].state_dict()["_extra_state"].values()
    ]


@pytest.mark.parametrize("placement", ["threads", "processes"])
def test_statistics_do_not_depend_on_how_environments_are_shared_out(placement: str) -> None:
    def collected(workers: int) -> list[torch.Tensor]:
        env = normed()
        arguments: dict[str, Any] = {
            "num_envs": 4 // workers,
            "frames_per_batch": 40,
            "total_frames": 120,
            "seed": 3,
            "placement": placement,
        }
        with MultiSyncCollector([env] * workers, None, **arguments) as collector:
            seen = [batch["next", "observation"].reshape(4, 10, 3).clone() for batch in collector]
        return seen + numbers(env)

    alone = collected(1)
    for workers in (2, 4):
        for got, expected in zip(collected(workers), alone, strict=True):
            assert torch.equal(got, expected), f"{workers} workers"


class Drifts(gymnasium.Env[Any, Any]):
    """Observes how many steps it has taken."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.steps = 0
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return numpy.full(2, self.steps, numpy.float32), 0.0, False, False, {}


def drifting() -> TransformedEnv:
    return TransformedEnv(
        GymWrapper(Drifts()), Compose(VecNorm(in_keys=["observation"], decay=0.99))
    )


def counted(env: Any) -> float:
    return float(env.transform[0].state_dict()["_extra_state"]["observation_count"])


@pytest.mark.parametrize("made", [False, True])
def test_members_of_a_parallel_env_gather_together(made: bool) -> None:
    creator = EnvCreator(drifting)
    one: Any = creator() if made else drifting()
    around = TransformedEnv(
        ParallelEnv(2, lambda: GymWrapper(Drifts())), VecNorm(in_keys=["observation"], decay=0.99)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = ParallelEnv(2, creator if made else one)
        rows = env.rollout(10)["observation"]
    around.rollout(10)
    assert 19 < counted(one) < 22
    for got, all_together in zip(
        numbers(one), around.transform.state_dict()["_extra_state"].values(), strict=True
    ):
        torch.testing.assert_close(got, all_together, rtol=1e-5, atol=1e-5)
    # Both members are alike, and find what the other has gathered, but for its last row.
    assert torch.equal(rows[0], rows[1])
    before = counted(one)
    one.transform[0].freeze()
    env.rollout(3)
    assert counted(one) == before
    env.close()
    around.close()


def test_states_of_members_are_those_that_they_share() -> None:
    one = drifting()
    env = ParallelEnv(2, one)
    env.rollout(3)
    saved, before = env.state_dict(), counted(one)
    assert sorted(saved) == ["worker0", "worker1"] and str(saved["worker0"]) == str(
        saved["worker1"]
    )
    env.rollout(5)
    assert counted(one) > before
    env.load_state_dict(saved)
    assert counted(one) == before
    env.rollout(2)
    assert counted(one) > before
    env.close()


@pytest.mark.parametrize("placement", ["threads", "processes"])
def test_collectors_of_one_worker_each_both_contribute(placement: str) -> None:
    env = TransformedEnv(
        GymEnv("Pendulum-v1"), Compose(VecNorm(in_keys=["observation"], decay=1.0))
    )
    arguments: dict[str, Any] = {"frames_per_batch": 20, "placement": placement}
    with Collector(env, None, **arguments) as one, Collector(env, None, **arguments) as other:
        for _ in range(3):
            next(one)
            next(other)
    # Each has begun one episode.
    assert counted(env) == 2 * (60 + 1)


@pytest.mark.parametrize("placement", ["inline", "threads", "processes"])
def test_a_frozen_copy_follows_and_never_changes_statistics(placement: str) -> None:
    def normed_by(norm: VecNorm) -> TransformedEnv:
        return TransformedEnv(GymEnv("Pendulum-v1"), Compose(norm))

    norm = VecNorm(in_keys=["observation"], out_keys=["normed"])
    env = normed_by(norm)
    # Without a seed, the statistics may be so narrow that rounding is more than the tolerance.
    env.set_seed(1)
    env.rollout(20)
    copied = norm.frozen_copy()
    assert copied.frozen and not norm.frozen
    with MultiSyncCollector(
        [normed_by(copied)], None, frames_per_batch=10, placement=placement
    ) as collector:
        for _ in range(3):
            before = counted(env)
            loc, scale = norm.loc["observation"], norm.scale["observation"]
            batch = next(collector)["next"]
            torch.testing.assert_close(
                batch["normed"], (batch["observation"] - loc) / scale, rtol=1e-4, atol=1e-4
            )
            assert counted(env) == before
            env.rollout(20)
    # One that goes on by itself leaves the other alone.
    before = counted(env)
    normed_by(copied.unfreeze()).rollout(5)
    assert not copied.frozen and counted(env) == before


@pytest.mark.parametrize("kind", [Collector, AsyncCollector])
def test_the_worker_of_a_class_of_one_updates_statistics_at_each_step_in_a_process_too(
    kind: Any,
) -> None:
    def collected(kind: Any, **options: Any) -> list[torch.Tensor]:
        creator = EnvCreator(drifting)
        env = creator()
        with kind(
            creator, None, frames_per_batch=20, total_frames=60, num_envs=2, **options
        ) as collector:
            seen = [batch["next", "observation"].clone() for batch in collector]
        return seen + numbers(env)

    for got, expected in zip(
        collected(kind, placement="processes"), collected(Collector), strict=True
    ):
        assert torch.equal(got, expected)


def test_killed_workers_leave_whole_statistics() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), VecNorm(in_keys=["observation"], decay=1.0))
    with MultiAsyncCollector(
        [env] * 3, None, frames_per_batch=50, placement="processes", on_loss=6
    ) as collector:
        for kill in range(6):
            next(collector)
            while not killed(collector.stats("per_worker")[f"worker_{kill % 3}/pid"]):
                # The one before has died, and this one is not there yet.
                next(collector)

        def counted() -> float:
            return float(env.transform.state_dict()["_extra_state"]["observation_count"])

        before = counted()
        assert before >= 300
        # What comes next may have been collected and counted before.
        until(lambda: next(collector) is not None and counted() > before)
    saved = env.transform.state_dict()["_extra_state"]
    # The cosine and the sine of one angle, in each observation.
    torch.testing.assert_close(
        saved["observation_ssq"][:2].sum(),
        saved["observation_count"][0],
        rtol=1e-3,
        atol=1e-3,
        check_dtype=False,
    )


def test_a_frozen_transform_leaves_them_as_they_are_at_once() -> None:
    env = normed()
    with Collector(env, None, frames_per_batch=20) as collector:
        next(collector)
        env.transform[0].freeze()
        before = count(env)
        next(collector)
        assert count(env) == before
        env.transform[0].unfreeze()
        next(collector)
        assert count(env) > before


def make() -> TransformedEnv:
    return normed()


@pytest.mark.parametrize("placement", ["threads", "processes"])
def test_environments_of_a_creator_share_statistics(placement: str) -> None:
    creator = EnvCreator(make)
    local = creator()
    with MultiSyncCollector(
        [creator] * 2, None, frames_per_batch=60, placement=placement
    ) as collector:
        next(collector)
        assert count(local) >= 62
    alone = EnvCreator(make, share_memory=False)
    local = alone()
    with MultiSyncCollector(
        [alone] * 2, None, frames_per_batch=60, placement=placement
    ) as collector:
        next(collector)
    assert count(local) == 0


@pytest.mark.parametrize("package", [own, theirs], ids=["windrow", "torchrl"])
def test_a_creator_saves_and_loads_what_its_environments_share(package: Any) -> None:
    def made() -> Any:
        norm = package.VecNorm(in_keys=["observation"], decay=1.0)
        return package.TransformedEnv(package.GymEnv("Pendulum-v1"), norm)

    def steps(env: Any) -> float:
        return float(env.state_dict()["_extra_state"]["observation_count"])

    creator = EnvCreator(made)
    # Of an environment that was reset and stepped once.
    saved = copy.deepcopy(creator.state_dict())
    assert steps(creator) == 2
    env = creator()
    env.rollout(5)
    assert steps(creator) == steps(env) == 8
    creator.load_state_dict(saved)
    assert steps(creator) == steps(env) == 2


@pytest.mark.parametrize("backend", ["thread", "process"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_evaluator_uses_them_and_leaves_them(backend: str, wrapped: bool) -> None:
    inner = normed()
    env = SerialEnv(1, [inner]) if wrapped else inner
    inner.rollout(20)
    before = count(inner)
    arguments = {"num_trajectories": 1, "max_steps": 30, "backend": backend}
    policy = lambda td: td.set("action", torch.zeros(*td.batch_size, 1))  # noqa: E731
    with Evaluator(env, policy, **arguments) as evaluator:
        evaluator.evaluate()
        assert count(inner) == before
        # The same object still gathers elsewhere.
        with Collector(env, None, frames_per_batch=10) as collector:
            next(collector)
            assert count(inner) > before
            before = count(inner)
            evaluator.evaluate()
            assert count(inner) == before


def test_an_evaluator_without_statistics_says_so() -> None:
    with pytest.raises(
        Exception, match="expected statistics to normalise with: load some, or gather some first"
    ):
        with Evaluator(
            normed, torch.nn.Linear(3, 1), num_trajectories=1, max_steps=5, backend="thread"
        ) as evaluator:
            evaluator.evaluate()


def test_a_collector_saves_and_loads_them_while_it_runs() -> None:
    env = normed()
    with Collector(env, None, frames_per_batch=50) as collector:
        next(collector)
        state = collector.state_dict()
        saved = count(env)
        next(collector)
        assert count(env) > saved
        collector.load_state_dict(state)
        assert count(env) == saved
        next(collector)
        assert count(env) > saved
    other = normed()
    with Collector(other, None, frames_per_batch=50) as fresh:
        fresh.load_state_dict(state)
        assert count(other) == saved


def test_states_of_torchrls_environments_are_taken() -> None:
    def their(transform: Any) -> Any:
        env = theirs.TransformedEnv(theirs.GymEnv("Pendulum-v1"), transform)
        env.rollout(7)
        return env.state_dict()

    single = TransformedEnv(GymEnv("Pendulum-v1"), VecNormV2(in_keys=["observation"]))
    single.load_state_dict(their(theirs.VecNormV2(in_keys=["observation"])))
    several = normed()
    several.load_state_dict(
        their(theirs.Compose(theirs.VecNormV2(in_keys=["observation"]), theirs.RewardSum()))
    )
    for transform in (single.transform, several.transform[0]):
        assert int(transform.state_dict()["_extra_state"]["count.-|-.observation"]) >= 8
    with pytest.raises(KeyError, match="has no state"):
        several.load_state_dict({"1": {"sum": 3}})
    wide = {
        "_extra_state": {name: torch.ones(5) for name in ("observation_sum", "observation_ssq")}
        | {"observation_count": torch.ones(1)}
    }
    narrow = TransformedEnv(GymEnv("Pendulum-v1"), VecNorm(in_keys=["observation"]))
    narrow.rollout(3)
    with pytest.raises(
        ValueError, match=r"statistics of VecNorm: expected .*float32 \[3\].*got .*\[5\]"
    ):
        narrow.load_state_dict({"0": wide})


def test_copies_have_statistics_of_their_own_and_pickled_ones_share_them() -> None:
    env = normed()
    env.rollout(10)
    before = count(env)
    copied, sent = env.transform.clone(), pickle.loads(pickle.dumps(env.transform[0]))
    TransformedEnv(GymEnv("Pendulum-v1"), copied).rollout(5)
    assert count(env) == before
    TransformedEnv(GymEnv("Pendulum-v1"), sent).rollout(5)
    assert count(env) == before + 6
    frozen = env.transform[0].frozen_copy()
    TransformedEnv(GymEnv("Pendulum-v1"), frozen).rollout(5)
    assert frozen.frozen and count(env) == before + 6


def test_environments_in_lockstep_have_statistics_each_or_together() -> None:
    for reduce, shape in ((False, (3, 3)), (True, (3,))):
        norm = VecNormV2(in_keys=["observation"], reduce_batch_dims=reduce)
        TransformedEnv(SerialEnv(3, lambda: GymEnv("Pendulum-v1")), norm).rollout(4)
        saved = norm.state_dict()["_extra_state"]
        assert saved["loc.-|-.observation"].shape == shape
        assert int(saved["count.-|-.observation"]) == (15 if reduce else 5)


def test_normalised_values_can_be_taken_back() -> None:
    norm = VecNorm(in_keys=["observation"], out_keys=["normed"])
    env = TransformedEnv(GymEnv("Pendulum-v1"), norm)
    env.rollout(20)
    norm.freeze()
    played = env.rollout(10)
    torch.testing.assert_close(
        norm.denorm(played.exclude("observation"))["observation"],
        played["observation"],
        rtol=1e-4,
        atol=1e-4,
    )
    fixed = TransformedEnv(GymEnv("Pendulum-v1"), norm.to_observation_norm())
    plain = fixed.rollout(3)
    torch.testing.assert_close(
        plain["normed"],
        (plain["observation"] - norm.loc["observation"]) / norm.scale["observation"],
        rtol=1e-4,
        atol=1e-4,
    )
    assert isinstance(VecNorm(in_keys=["observation"], new_api=True), VecNormV2)
    with pytest.raises(RuntimeError, match="has no statistics yet"):
        VecNorm().frozen_copy()
    with pytest.raises(ValueError, match="got shared_td or shapes"):
        VecNorm(shared_td={})
