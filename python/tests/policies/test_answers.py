"""What policies may answer in, and what they are given."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections import namedtuple
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import nn

from windrow.collectors import AsyncBatchedCollector, Collector, Evaluator, MultiSyncCollector
from windrow.envs import GymEnv
from windrow.modules import RemotePolicy, RemoteServer


def collect(policy, env: Any = "CartPole-v1", **arguments) -> TensorDict:
    with Collector(
        env, policy, **{"frames_per_batch": 20, "num_envs": 2, "seed": 1, **arguments}
    ) as collector:
        return next(collector)


class Arrays:
    """An array of another library: windrow sees no more of it than DLPack."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._values.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self._values.__dlpack_device__()


@dataclasses.dataclass
class Fields:
    value: Any
    action: Any
    unknown: Any = None


class Named(NamedTuple):
    value: Any
    action: Any


Positions = namedtuple("Positions", "choice score")


def signs(observation) -> np.ndarray:
    return (np.asarray(observation)[..., 0] > 0).astype(np.int64)


ANSWERS = {
    "NumPy": signs,
    "NumPy, read only": lambda observation: np.broadcast_to(signs(observation), (2,)),
    "NumPy, backwards": lambda observation: signs(observation)[::-1][::-1],
    "another byte order": lambda observation: signs(observation).astype(">i4"),
    "narrow scores": lambda observation: (
        np.stack([-observation[..., 0], observation[..., 0]], -1).astype(np.float16) * 100
    ),
    "bytes of integers": lambda observation: signs(observation).astype(np.uint8),
    "scores": lambda observation: np.stack([-observation[..., 0], observation[..., 0]], -1),
    "a list": lambda observation: signs(observation).tolist(),
    "a list of tensors": lambda observation: list(torch.from_numpy(signs(observation))),
    "a list of arrays": lambda observation: list(signs(observation)),
    "DLPack": lambda observation: Arrays(signs(observation)),
    "a dictionary": lambda observation: {"action": signs(observation)},
    "a TensorDict": lambda observation: TensorDict({"action": signs(observation)}, batch_size=2),
    "a dataclass": lambda observation: Fields(np.zeros(2), signs(observation)),
    "a named tuple": lambda observation: Named(np.zeros(2), signs(observation)),
    "an object": lambda observation: SimpleNamespace(action=signs(observation), value=[0.0, 1.0]),
    "a tuple": lambda observation: (signs(observation), [0.5, 0.25]),
    "another named tuple": lambda observation: Positions(signs(observation), [0.5, 0.25]),
    "a TensorDict of its own": lambda td: {"action": signs(td["observation"])},
}


@pytest.mark.parametrize("what", ANSWERS)
def test_policies_answer_in_anything(what: str) -> None:
    batch = collect(ANSWERS[what])
    assert torch.equal(batch["action"], (batch["observation"][..., 0] > 0).long())


def test_outputs_have_the_names_and_types_that_the_policy_gives_them() -> None:
    def policy(observation):
        return {
            "value": observation[..., 0].numpy(),
            "_scratch": 1,
            "none": None,
            "heads": {"first": [1, 2], "second": observation},
            "action": signs(observation),
        }

    batch = collect(policy)
    assert torch.equal(batch["value"], batch["observation"][..., 0])
    assert batch["heads", "first"].dtype == torch.int64 and batch["heads", "second"].shape == (
        2,
        10,
        4,
    )
    assert {"_scratch", "none"}.isdisjoint(batch.keys())
    batch = collect(lambda observation: (signs(observation), [0.1, 0.2]))
    # Python's numbers lose no digits.
    assert torch.equal(batch["output1"][:, 0], torch.tensor([0.1, 0.2], dtype=torch.float64))
    assert torch.equal(
        collect(lambda observation: Named([1, 2], signs(observation)))["value"][:, 0],
        torch.tensor([1, 2]),
    )


@pytest.mark.parametrize("number", [1, True, np.int32(1), np.array(1), torch.tensor(1)])
def test_one_environment_takes_a_number(number) -> None:
    for env in ("CartPole-v1", GymEnv("CartPole-v1", categorical_action_encoding=True)):
        batch = collect(
            lambda observation: {"action": number, "value": 0.5},
            env,
            num_envs=1 if isinstance(env, str) else None,
        )
        assert batch["action"].eq(1).all() and batch["value"].eq(0.5).all()


WRONG = {
    "a scalar for two": (
        lambda observation: 1,
        "expected int64 .* for each of 2 environments, got int64 \\[\\]",
    ),
    "three rows": (
        lambda observation: np.zeros(3, int),
        "for each of 2 environments, got int64 \\[3\\]",
    ),
    "half an action": (
        lambda observation: [0.5, 0.5, 0.5],
        "for each of 2 environments, got float64 \\[3\\]",
    ),
    "text": (
        lambda observation: "left",
        "'action': expected a tensor, an array, a number or a list of numbers, got str",
    ),
    "texts": (
        lambda observation: np.array(["left", "right"]),
        "'action': expected numbers, got an array of <U5",
    ),
    "nothing": (lambda observation: None, "'action': expected a tensor, .* got NoneType"),
    "rows that differ": (
        lambda observation: [[1], [1, 2]],
        "'action': expected rows of one shape .* torch.int64 \\[1\\], torch.int64 \\[2\\]",
    ),
    "no action": (
        lambda observation: {"actions": [1, 1]},
        "the policy writes \\['actions'\\], but no 'action'",
    ),
    "a number for a name": (lambda observation: {1: 2}, "names of outputs that are strings.*got 1"),
    "a state": (
        lambda observation: {"action": [1, 1], "next": {"state": [1, 1]}},
        "TensorDictModule, whose states windrow keeps",
    ),
    "an entry": (
        lambda observation: {"action": [1, 1], "value": [1, 1, 1]},
        '"value" has shape \\[3\\]',
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_answers_are_errors_that_say_what_was_expected(what: str) -> None:
    policy, message = WRONG[what]
    with pytest.raises((TypeError, KeyError, ValueError), match=message):
        collect(policy)


def test_outputs_with_other_names_than_at_first_are_errors() -> None:
    calls = iter(range(100))

    def policy(observation):
        return {"action": [1, 1], "value" if next(calls) < 4 else "values": [1, 1]}

    with pytest.raises(
        Exception,
        match="expected the outputs \\['action', 'value'\\], as when it was first called, got \\['action', 'values'\\]",
    ):
        collect(policy)


# What policies are given


def test_functions_get_the_arrays_that_they_are_written_for() -> None:
    weight, given = np.ones((4, 2), np.float32), set()

    def annotated(observation: np.ndarray):
        given.add(type(observation))
        return observation @ weight

    def silent(observation):
        # With a tensor, torch refuses this product.
        return np.argmax(observation @ weight, axis=-1)

    batch = collect(annotated)
    assert given == {np.ndarray}
    assert torch.equal(collect(silent)["action"], batch["action"])
    assert torch.equal(
        collect(lambda observation: observation.matmul(torch.from_numpy(weight)))["action"],
        batch["action"],
    )


def test_an_error_of_the_policy_is_told_as_it_was_with_tensors() -> None:
    def policy(observation):
        return observation.nowhere

    with pytest.raises(
        AttributeError, match="'Tensor' object has no attribute 'nowhere'"
    ) as caught:
        collect(policy)
    assert "with NumPy arrays in the place of tensors: AttributeError: 'numpy.ndarray'" in str(
        caught.value.__notes__
    )


def test_functions_of_jax_get_arrays_of_jax(monkeypatch) -> None:
    class Array:
        def __init__(self, values):
            self.values = values

    class Compiled:
        def __call__(self, observation):
            assert isinstance(observation, Array)
            return Arrays(signs(observation.values))

    numpy = ModuleType("jax.numpy")
    numpy.asarray = Array  # type: ignore[attr-defined]
    jax = ModuleType("jax")
    jax.numpy = numpy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.numpy", numpy)
    Compiled.__module__ = "jaxlib.xla_extension"
    batch = collect(Compiled())
    assert torch.equal(batch["action"], (batch["observation"][..., 0] > 0).long())


class Car(gymnasium.Env):
    """Observes a dictionary with a group, and takes a dictionary."""

    observation_space = gymnasium.spaces.Dict(
        {
            "position": gymnasium.spaces.Box(-1, 1, (2,)),
            "inner": gymnasium.spaces.Dict({"speed": gymnasium.spaces.Box(-1, 1, (1,))}),
        }
    )
    action_space = gymnasium.spaces.Dict(
        {"steer": gymnasium.spaces.Box(-1, 1, (1,)), "gear": gymnasium.spaces.Discrete(3)}
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {"lives": 3}

    def step(self, action):
        assert action["gear"] == 2
        return self.observation_space.sample(), 0.0, False, False, {"lives": 3}


def car():
    return GymEnv(Car(), categorical_action_encoding=True)


@pytest.mark.parametrize("nested", [True, False])
def test_a_single_parameter_takes_a_dictionary_of_all_observations(nested: bool) -> None:
    def policy(observations: dict[str, Any]):
        assert sorted(observations) == ["inner", "position"] and list(observations["inner"]) == [
            "speed"
        ]
        action = {
            "steer": observations["inner"]["speed"],
            "gear": 2 if observations["position"].ndim == 1 else np.full(2, 2),
        }
        return {"action": action, "sum": observations["position"].sum(-1)} if nested else action

    for count in (None, 2):
        batch = collect(policy, car, num_envs=count)
        assert torch.equal(batch["action", "steer"], batch["inner", "speed"])
        assert not nested or torch.equal(batch["sum"], batch["position"].sum(-1))


def test_parameters_take_groups_by_name() -> None:
    def policy(inner, position):
        return {"action": {"steer": inner["speed"], "gear": [2]}}

    batch = collect(policy, car, num_envs=None)
    assert torch.equal(batch["action", "steer"], batch["inner", "speed"])


class Speed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, observations: dict[str, Any]):
        scores = self.layer(
            torch.cat([observations["position"], observations["inner"]["speed"]], -1)
        )
        return {
            "action": {
                "steer": scores[..., :1].tanh(),
                "gear": scores[..., 1:] + torch.tensor([0, 0, 100.0]),
            }
        }


def test_a_module_of_dictionaries_runs_in_rust() -> None:
    policy = Speed()
    for own in (collect(policy, car, policy_backend="native"), car().rollout(10, policy)):
        assert torch.allclose(
            own["action", "steer"], policy(own)["action"]["steer"].detach(), atol=1e-5
        )


@pytest.mark.parametrize(
    "policy",
    [
        lambda x: signs(x),
        lambda observation: signs(observation),
        lambda *inputs: signs(*inputs),
        nn.Linear(4, 2),
    ],
)
def test_entries_of_info_refuse_no_policy(policy) -> None:
    class WithInfo(gymnasium.Wrapper):
        def reset(self, **arguments):
            observation, info = self.env.reset(**arguments)
            return observation, {**info, "lives": 3, "output1": 1.0, "depth": {"inner": 1.0}}

        def step(self, action):
            *rest, info = self.env.step(action)
            return *rest, {**info, "lives": 3, "output1": 1.0, "depth": {"inner": 1.0}}

    def env():
        keys = ["lives", "output1", ("depth", "inner")]
        return GymEnv(
            WithInfo(gymnasium.make("CartPole-v1")),
            info_keys=keys,
            categorical_action_encoding=True,
        )

    for count in (None, 2):
        batch = collect(policy, env, num_envs=count)
        assert batch["lives"].eq(3).all() and batch["depth", "inner"].eq(1).all()


# Wherever policies act


class Count:
    """Counts its threads, and answers in lists."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def __call__(self, observation):
        self.threads.add(threading.get_ident())
        return {"action": signs(observation).tolist(), "value": observation[..., 0].tolist()}


@pytest.mark.parametrize("placement", ["threads", "processes"])
def test_answers_arrive_from_workers(placement: str) -> None:
    with MultiSyncCollector(
        ["CartPole-v1"] * 2, Count(), frames_per_batch=40, num_envs=2, placement=placement
    ) as collector:
        batch = next(collector)
    assert torch.allclose(batch["value"], batch["observation"][..., 0].double())


def test_answers_arrive_from_servers_and_evaluators() -> None:
    with AsyncBatchedCollector(["CartPole-v1"] * 3, Count(), frames_per_batch=30) as collector:
        batch = next(collector)
    assert torch.allclose(batch["value"], batch["observation"][..., 0].double())
    with RemoteServer(Count()) as server:
        batch = collect(RemotePolicy(server.address))
    assert torch.allclose(batch["value"], batch["observation"][..., 0].double())
    assert Evaluator("CartPole-v1", Count(), num_trajectories=2).evaluate()["eval/reward"] > 0


# Models


class Recurrent:
    """A model that remembers how many steps an episode has had."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        assert isinstance(observation, np.ndarray)
        if state is None:
            state = (np.zeros(len(observation)),)
        if episode_start is not None:
            state = (np.where(episode_start, 0, state[0]),)
        return state[0].astype(np.int64) % 2, (state[0] + 1,)


def test_the_state_of_a_model_begins_anew_with_each_episode() -> None:
    for policy in (Recurrent(), Recurrent().predict):
        batch = collect(policy, frames_per_batch=120)
        for row in range(2):
            since = 0
            for step in range(60):
                assert batch["action"][row, step] == since % 2
                since = 0 if batch["next", "done"][row, step] else since + 1
    with pytest.raises(Exception, match="a served policy is called with any rows"):
        next(AsyncBatchedCollector(["CartPole-v1"] * 2, Recurrent(), frames_per_batch=8))


def model(algorithm: Any, env: Any, **arguments: Any) -> Any:
    return algorithm(
        "MlpPolicy" if isinstance(env, str) else "MultiInputPolicy", env, seed=1, **arguments
    )


class Pair(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        {name: gymnasium.spaces.Box(-1, 1, (2,)) for name in ("first", "second")}
    )
    action_space = gymnasium.spaces.Box(-2, 2, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


def test_models_of_stable_baselines_act_and_run_in_rust() -> None:
    from stable_baselines3 import PPO, SAC

    ppo = model(PPO, "CartPole-v1", n_steps=64, batch_size=32)
    # After learning, its policy keeps the last distribution.
    ppo.learn(64)
    for policy in (ppo, ppo.policy.predict):
        batch = collect(policy, policy_backend="native", exploration_type="deterministic")
        assert torch.equal(
            batch["action"],
            torch.from_numpy(
                ppo.predict(batch["observation"].flatten(0, 1), deterministic=True)[0]
            ).view(2, -1),
        )
    assert set(
        collect(ppo, policy_backend="native", frames_per_batch=200)["action"].flatten().tolist()
    ) == {0, 1}
    # One that squashes its actions, and one of dictionaries that clips them.
    for trained, env in (
        (model(SAC, "Pendulum-v1"), "Pendulum-v1"),
        (model(PPO, Pair()), lambda: GymEnv(Pair())),
    ):
        batch = collect(trained, env, policy_backend="native", exploration_type="deterministic")
        observed = (
            {key: batch[key].flatten(0, 1).numpy() for key in ("first", "second")}
            if callable(env)
            else batch["observation"].flatten(0, 1).numpy()
        )
        expected, _ = trained.predict(observed, deterministic=True)
        assert torch.allclose(batch["action"].flatten(0, 1), torch.from_numpy(expected), atol=1e-5)
        drawn = collect(trained, env, policy_backend="native")["action"]
        assert drawn.abs().max() <= 2 and not torch.allclose(drawn, batch["action"])


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        ("PPO", "CartPole-v1"),
        ("PPO", "Pendulum-v1"),
        ("SAC", "Pendulum-v1"),
        ("TD3", "Pendulum-v1"),
    ],
)
def test_a_policy_of_stable_baselines_acts_as_its_model(
    algorithm: str, env: str, backend: str
) -> None:
    import stable_baselines3

    trained = model(getattr(stable_baselines3, algorithm), env)
    for num_envs in (None, 2):
        batch = collect(
            trained.policy,
            env,
            policy_backend=backend,
            exploration_type="deterministic",
            num_envs=num_envs,
        )
        expected, _ = trained.predict(batch["observation"].flatten(0, -2), deterministic=True)
        assert torch.allclose(
            batch["action"].reshape(expected.shape), torch.from_numpy(expected), atol=1e-5
        )
    if algorithm == "PPO":
        # What was drawn, not what the environment clipped it to.
        batch = collect(trained.policy, env, policy_backend=backend)
        with torch.no_grad():
            value, log_prob, _ = trained.policy.evaluate_actions(
                batch["observation"].flatten(0, 1), batch["action"].flatten(0, 1)
            )
        assert torch.allclose(batch["value"].flatten(0, 1), value, atol=1e-4) and torch.allclose(
            batch["log_prob"].flatten(), log_prob, atol=1e-4
        )
    if algorithm == "SAC":
        assert (
            1
            < collect(trained.policy, env, policy_backend=backend, frames_per_batch=200)["action"]
            .abs()
            .max()
            <= 2
        )


def test_a_policy_of_stable_baselines_acts_in_rollouts_and_evaluators() -> None:
    from stable_baselines3 import PPO, TD3

    td3, ppo = model(TD3, "Pendulum-v1"), model(PPO, "CartPole-v1")
    for num_envs in (None, 2):
        steps = GymEnv("Pendulum-v1", num_envs=num_envs).rollout(5, td3.policy)
        expected, _ = td3.predict(steps["observation"].flatten(0, -2), deterministic=True)
        assert torch.allclose(steps["action"].flatten(0, -2), torch.from_numpy(expected), atol=1e-5)
    rewards = set()
    for policy in (ppo, ppo.policy):
        with Evaluator("CartPole-v1", policy, num_trajectories=5, seed=0) as evaluator:
            rewards.add(evaluator.evaluate()["eval/reward"])
    assert len(rewards) == 1
    with pytest.raises(ValueError, match=r"the policy observes \[4\], the environment \[6\]"):
        collect(ppo.policy, "Acrobot-v1")


def test_a_loaded_model_acts_and_its_weights_can_be_replaced(tmp_path) -> None:
    from stable_baselines3 import PPO

    first, second = (PPO("MlpPolicy", "CartPole-v1", seed=seed) for seed in (1, 2))
    first.save(tmp_path / "model")
    with Collector(
        "CartPole-v1",
        PPO.load(tmp_path / "model"),
        frames_per_batch=20,
        num_envs=2,
        exploration_type="mode",
    ) as collector:
        for policy in (first, second):
            batch = next(collector)
            given = batch["observation"].flatten(0, 1)
            assert (
                batch["action"].flatten().tolist()
                == policy.predict(given, deterministic=True)[0].tolist()
            )
            collector.update_policy_weights_(second.policy)


def test_a_model_with_a_predict_of_its_own_is_called_with_numpy() -> None:
    from stable_baselines3 import DQN

    dqn = model(DQN, "CartPole-v1")
    batch = collect(dqn, exploration_type="deterministic")
    assert (
        batch["action"].flatten().tolist()
        == dqn.predict(batch["observation"].flatten(0, 1), deterministic=True)[0].tolist()
    )
    dqn.exploration_rate = 1.0
    assert set(
        collect(dqn, frames_per_batch=400, placement="inline")["action"].flatten().tolist()
    ) == {0, 1}
    lake = model(DQN, "FrozenLake-v1")
    batch = collect(lake, "FrozenLake-v1", exploration_type="deterministic")
    places = batch["observation"].flatten()
    assert (
        batch["action"].flatten().tolist()
        == lake.predict(places.numpy(), deterministic=True)[0].tolist()
    )
    with pytest.raises(
        TypeError,
        match="the model observes \\['first', 'second'\\], the environment \\['observation'\\]: 'first' is missing",
    ):
        collect(
            model(DQN, type("Choices", (Pair,), {"action_space": gymnasium.spaces.Discrete(2)})())
        )
    with pytest.raises(
        TypeError,
        match="a policy that can be called, or a model with a method predict, got SimpleNamespace",
    ):
        collect(SimpleNamespace(predict=lambda observation: observation))


@pytest.mark.parametrize("placement", ["threads", "processes"])
def test_models_act_in_workers(placement: str) -> None:
    from stable_baselines3 import PPO

    ppo = model(PPO, "CartPole-v1", n_steps=64, batch_size=32)
    ppo.learn(64)
    for backend in ("native", "torch"):
        arguments = {
            "frames_per_batch": 40,
            "num_envs": 2,
            "placement": placement,
            "policy_backend": backend,
            "exploration_type": "mode",
        }
        with MultiSyncCollector(["CartPole-v1"] * 2, ppo, **arguments) as collector:
            batch = next(collector)
        given = batch["observation"].flatten(0, -2)
        assert (
            batch["action"].flatten().tolist() == ppo.predict(given, deterministic=True)[0].tolist()
        )


def test_a_module_may_keep_parts_and_results_of_its_weights() -> None:
    class Part(nn.Linear):
        def forward(self, observation):
            return super().forward(observation)

    policy = Part(4, 2)
    policy.kept = policy.weight[0]
    collect(policy, policy_backend="native")
    policy.kept = policy.weight.sum()
    assert "native" in str(Collector("CartPole-v1", policy, frames_per_batch=10))


def test_a_policy_that_writes_an_entry_of_info_is_told_so() -> None:
    class Lives(gymnasium.Wrapper):
        def reset(self, **arguments):
            observation, info = self.env.reset(**arguments)
            return observation, {**info, "lives": 3}

        def step(self, action):
            *rest, info = self.env.step(action)
            return *rest, {**info, "lives": 3}

    env = GymEnv(
        Lives(gymnasium.make("CartPole-v1")), info_keys=["lives"], categorical_action_encoding=True
    )
    with pytest.raises(
        ValueError,
        match='"lives" float32 \\[\\], where frames of .* have "lives" int64 \\[\\], which info brings: let it write that under',
    ):
        collect(lambda observation: {"action": 1, "lives": observation[..., 0]}, env, num_envs=None)
