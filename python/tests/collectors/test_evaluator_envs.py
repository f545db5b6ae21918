"""The environment of an evaluator, and what an evaluation leaves as it was."""

from __future__ import annotations

import sys
import threading
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs import (
    Compose as TheirCompose,
    GymEnv as TheirGymEnv,
    StepCounter as TheirStepCounter,
    TransformedEnv as TheirTransformedEnv,
    VecNorm,
    VecNormV2,
)

from cartpole import cartpole
from windrow.collectors import Evaluator, _evaluator
from windrow.envs import GymWrapper, RewardSum, SerialEnv, TransformedEnv


@pytest.fixture(autouse=True)
def in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluators of these tests run in threads. `test_process_evaluator.py` has those in
    processes.
    """
    monkeypatch.setattr(_evaluator, "_stays", lambda *_: True)


def module() -> TensorDictModule:
    return TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])


def with_vecnorm(norm: Any = VecNormV2) -> TheirTransformedEnv:
    return TheirTransformedEnv(
        TheirGymEnv("Pendulum-v1"), TheirCompose(TheirStepCounter(), norm(in_keys=["observation"]))
    )


def with_wrappers() -> gymnasium.Env:
    return NormalizeReward(NormalizeObservation(gymnasium.make("Pendulum-v1")))


def vecnorm(env: TheirTransformedEnv) -> float:
    norm = env.transform[1]
    counts = (
        norm._count
        if isinstance(norm, VecNormV2)
        else norm.state_dict()["_extra_state"]["observation_count"]
    )
    return float(counts["observation"] if isinstance(norm, VecNormV2) else counts)


def wrappers(env: gymnasium.Env) -> float:
    return float(env.return_rms.count + env.env.obs_rms.count)


#: What makes an environment that gathers statistics, how many steps it has gathered, and in what it
#: may be given.
GATHERING = {
    "VecNormV2": (with_vecnorm, vecnorm, lambda env: env),
    "VecNorm": (lambda: with_vecnorm(VecNorm), vecnorm, lambda env: env),
    "wrappers of Gymnasium": (with_wrappers, wrappers, lambda env: env),
    "in a GymWrapper": (with_wrappers, wrappers, GymWrapper),
    "in a TransformedEnv": (
        with_wrappers,
        wrappers,
        lambda env: TransformedEnv(GymWrapper(env), RewardSum()),
    ),
    "in a SerialEnv": (with_wrappers, wrappers, lambda env: SerialEnv(1, [env])),
}


def gather(env: Any) -> None:
    """Takes some steps, in which an environment gathers statistics."""
    if isinstance(env, gymnasium.Env):
        env.reset(seed=0)
        for _ in range(20):
            env.step(env.action_space.sample())
    else:
        env.rollout(20)


@pytest.mark.parametrize("name", GATHERING)
@pytest.mark.parametrize("made", [False, True], ids=["object", "function"])
def test_an_evaluation_uses_statistics_and_changes_none(name: str, made: bool) -> None:
    make, count, around = GATHERING[name]
    env = make()
    gather(env)
    before = count(env)
    given = (lambda: around(env)) if made else around(env)
    with Evaluator(given, module(), num_trajectories=2, max_steps=30) as evaluator:
        evaluator.evaluate()
        assert count(env) == before
    if not made:
        # It gathers again for whoever gave it.
        gather(env)
        assert count(env) > before


def test_environments_that_a_batch_makes_gather_nothing_either() -> None:
    made = []

    def make() -> gymnasium.Env:
        made.append(with_wrappers())
        return made[-1]

    with Evaluator(SerialEnv(2, make), module(), num_trajectories=2, max_steps=30) as evaluator:
        evaluator.evaluate()
        assert {wrappers(env) for env in made} == {wrappers(with_wrappers())}


def test_an_environment_that_was_given_frozen_stays_so() -> None:
    env = with_vecnorm()
    gather(env)
    env.transform[1].freeze()
    with Evaluator(env, module(), num_trajectories=1, max_steps=5) as evaluator:
        evaluator.evaluate()
    assert env.transform[1].frozen


def test_one_environment_is_made_in_the_thread_of_the_evaluator_and_shown_to_the_policys_function() -> (
    None
):
    seen: list[tuple[str, Any, str]] = []

    def note(what: str, value: Any) -> Any:
        seen.append((what, value, threading.current_thread().name))
        return value

    class Watched(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            note("step", self)
            return super().step(action)

    def policy(env: Any) -> nn.Module:
        note("policy", env)
        return nn.Linear(4, 2)

    def make() -> Any:
        return note("env", Watched(gymnasium.make("CartPole-v1")))

    with Evaluator(make, policy_factory=policy, num_trajectories=2) as evaluator:
        assert not seen, "both are made when they are needed"
        evaluator.evaluate()
        evaluator.evaluate()
    assert [what for what, _, _ in seen if what != "step"] == ["env", "policy"]
    assert len({id(value) for _, value, _ in seen}) == 1, "it is the environment that is stepped"
    assert len({thread for _, _, thread in seen}) == 1
    assert seen[0][2] != threading.current_thread().name


@pytest.mark.parametrize(
    "env", ["CartPole-v1", cartpole(), cartpole], ids=["id", "object", "function"]
)
def test_the_function_that_makes_a_policy_is_given_the_environment(env: Any) -> None:
    def policy(env: Any) -> nn.Module:
        return nn.Linear(env.observation_spec["observation"].shape[-1], env.action_spec.space.n)

    with Evaluator(env, policy_factory=policy, num_trajectories=1) as evaluator:
        assert evaluator.evaluate()["eval/num_episodes"] == 1


def test_an_error_of_the_function_that_makes_a_policy_is_raised() -> None:
    def policy(env: Any) -> nn.Module:
        raise KeyError("no such policy")

    with pytest.raises(KeyError, match="no such policy"):
        Evaluator(cartpole, policy_factory=policy, num_trajectories=1).evaluate()


class Normalised(nn.Module):
    """Gathers statistics in training mode alone, and counts in which mode it was called."""

    modes: list[bool]

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        Normalised.modes.append(self.training)
        return self.last(self.norm(observation.reshape(-1, 4))).reshape(*observation.shape[:-1], 2)


@pytest.mark.parametrize("by_factory", [False, True])
def test_a_module_acts_in_evaluation_mode(by_factory: bool) -> None:
    Normalised.modes = []
    policy = Normalised()
    policies = {"policy_factory": Normalised} if by_factory else {"policy": policy}
    with Evaluator(cartpole, num_trajectories=1, policy_backend="torch", **policies) as evaluator:
        evaluator.evaluate()
        evaluator.evaluate(policy)
    assert set(Normalised.modes) == {False}
    assert policy.training and int(policy.norm.num_batches_tracked) == 0


def test_extracted_weights_are_a_copy_that_tensordict_knows() -> None:
    policy = Normalised()
    weights = Evaluator.extract_weights(policy)
    assert weights["norm", "running_mean"].shape == (4,)
    with torch.no_grad():
        policy.last.weight.fill_(7.0)
    assert not (weights["last", "weight"] == 7.0).any()


@pytest.mark.parametrize(
    "backend",
    [
        "thread",
        pytest.param(
            "process", marks=pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
        ),
    ],
)
@pytest.mark.parametrize("decay", [1.0, 0.99])
def test_statistics_that_have_seen_nothing_leave_observations_as_they_are(
    backend: str, decay: float
) -> None:
    """An evaluator is usually made before the training begins."""
    from torchrl.envs import GymEnv, TransformedEnv, VecNormV2

    def plain() -> Any:
        return GymEnv("Pendulum-v1")

    def normed() -> Any:
        return TransformedEnv(plain(), VecNormV2(in_keys=["observation"], decay=decay))

    policy = TensorDictModule(torch.nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
    rewards = []
    for make in (plain, normed, normed()):
        with Evaluator(
            make, policy, num_trajectories=1, max_steps=20, seed=3, backend=backend
        ) as evaluator:
            rewards.append(evaluator.evaluate(step=0)["eval/reward"])
    assert rewards[1] == rewards[2] == pytest.approx(rewards[0], rel=1e-4)
    # It gathers as before, and evaluations use the statistics gathered so far.
    make.set_seed(0)
    make.rollout(30)
    with Evaluator(
        make, policy, num_trajectories=1, max_steps=20, seed=3, backend=backend
    ) as evaluator:
        assert evaluator.evaluate(step=0)["eval/reward"] != pytest.approx(rewards[0], rel=1e-4)


@pytest.mark.parametrize("kind", ["recorder", "transform", "in a compose", "own compose"])
def test_whatever_dumps_is_told_once(kind: str) -> None:
    """As the outermost transform's `dump` of TorchRL passes it on."""
    from torchrl.envs import Compose, GymEnv, StepCounter, Transform, TransformedEnv

    steps: list[int | None] = []

    class Dumping(Transform):
        def dump(self, **given: Any) -> None:
            steps.append(given["step"])

    class Others(Transform):
        """Takes no step, as `PixelRenderTransform`."""

        def dump(self, suffix: str | None = None) -> None:
            raise AssertionError

    class Telling(Compose):
        def dump(self, **given: Any) -> None:
            super().dump(**given)

    recorder = Dumping()
    if kind == "recorder":
        recorder.logger = None
    around = {
        "in a compose": lambda: Compose(StepCounter(), recorder, Others()),
        "own compose": lambda: Telling(StepCounter(), recorder),
    }
    env = TransformedEnv(GymEnv("Pendulum-v1"), around.get(kind, lambda: recorder)())
    policy = TensorDictModule(torch.nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
    with Evaluator(env, policy, num_trajectories=1, max_steps=3) as evaluator:
        evaluator.evaluate(step=7)
        evaluator.evaluate(step=8)
    assert steps == [7, 8]


@pytest.mark.parametrize("dumps", [True, False])
def test_recorders_write_after_each_evaluation(dumps: bool) -> None:
    from torchrl.envs import GymEnv, StepCounter, Transform, TransformedEnv

    class Recorder(Transform):
        logger = None

        def dump(self, step: int | None = None) -> None:
            steps.append(step)

    steps: list[int | None] = []
    env = TransformedEnv(TransformedEnv(GymEnv("Pendulum-v1"), StepCounter()), Recorder())
    policy = TensorDictModule(torch.nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
    seen: list[list[int | None]] = []
    with Evaluator(
        env,
        policy,
        num_trajectories=1,
        max_steps=3,
        dump_video=dumps,
        on_result=lambda result: seen.append(list(steps)),
    ) as evaluator:
        evaluator.evaluate(step=7)
        evaluator.evaluate()
    assert steps == ([7, 8] if dumps else []) and seen == [steps[:1], steps]
