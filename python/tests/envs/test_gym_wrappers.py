"""Wrappers of Gymnasium whose steps the engine runs, against the same ones stepped by hand: equal
to the last bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import wrappers as w
from gymnasium.wrappers.utils import RunningMeanStd

from windrow.collectors import Collector, MultiSyncCollector
from windrow.envs import GymEnv, GymWrapper, SerialEnv
from windrow.envs._gym_wrappers import peel

SEED = 3


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes a file with its warnings where it runs."""
    monkeypatch.chdir(tmp_path)


def cleanrl(id: str, **kwargs: Any) -> Any:
    """The stack of CleanRL's scripts for continuous actions."""
    env = w.FlattenObservation(gymnasium.make(id, **kwargs))
    env = w.ClipAction(w.RecordEpisodeStatistics(env))
    env = w.TransformObservation(
        w.NormalizeObservation(env), lambda obs: np.clip(obs, -10, 10), None
    )
    return w.TransformReward(
        w.NormalizeReward(env, gamma=0.98), lambda reward: np.clip(reward, -10, 10)
    )


class Odd(gymnasium.Env[Any, Any]):
    """Observes and earns numbers of many sizes, types and signs, and what is no number."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2, 3), np.float32)
    action_space = gymnasium.spaces.Box(
        np.array([-1, 0, -0.5], np.float32), np.array([0, 2, 0.25], np.float32)
    )

    def __init__(
        self, dtypes: tuple[Any, ...], rewards: tuple[Any, ...], finite: bool = True
    ) -> None:
        self.dtypes, self.rewards, self.finite = dtypes, rewards, finite
        self.taken: list[Any] = []

    def _seen(self) -> Any:
        drawn = self.np_random.standard_normal((2, 3)) * 10.0 ** self.np_random.integers(
            -4, 5, (2, 3)
        )
        drawn[0, 0] = self.np_random.choice(
            [0.0, -0.0, 1.0] if self.finite else [np.inf, np.nan, 0.0]
        )
        return drawn.astype(self.dtypes[len(self.taken) % len(self.dtypes)])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.taken.append(copy.deepcopy(action))
        reward = self.rewards[len(self.taken) % len(self.rewards)](self.np_random.standard_normal())
        ends = self.np_random.random(2) < 0.1
        return self._seen(), reward, ends[0], bool(ends[1]), {}


def odd(
    *names: str,
    dtypes: tuple[Any, ...] = (np.float32,),
    rewards: tuple[Any, ...] = (float,),
    finite: bool = True,
    **kwargs: Any,
) -> Any:
    """An odd environment in wrappers, the innermost first."""
    env: Any = Odd(dtypes, rewards, finite)
    for name in names:
        more = {
            "RescaleAction": (-0.3, 0.7),
            "ClipReward": (-0.5, 0.75),
            "TimeLimit": (7,),
            "FrameStackObservation": (3,),
        }
        env = getattr(w, name)(env, *more.get(name, ()))
    return env


FLAT, CLIPPED = (
    ("NormalizeReward", "NormalizeObservation"),
    ("ClipReward", "NormalizeReward", "TimeLimit"),
)
ACTIONS = ("RescaleAction", "ClipAction")

CLEANRL = [
    *(
        "TransformReward",
        "NormalizeReward",
        "TransformObservation",
        "NormalizeObservation",
        "ClipAction",
    ),
    *("RecordEpisodeStatistics", "FlattenObservation"),
]

#: Environments, and what the engine runs of each from the outside in.
STACKS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "made": (partial(gymnasium.make, "CartPole-v1"), []),
    "CleanRL, float64": (
        partial(cleanrl, "HalfCheetah-v5", max_episode_steps=30),
        CLEANRL,
    ),
    "CleanRL, float32": (
        partial(cleanrl, "Pendulum-v1", max_episode_steps=30),
        CLEANRL,
    ),
    "indices": (
        lambda: w.NormalizeReward(w.NormalizeObservation(gymnasium.make("CartPole-v1"))),
        ["NormalizeReward", "NormalizeObservation"],
    ),
    "float32 in two dimensions": (partial(odd, *FLAT), ["NormalizeObservation", "NormalizeReward"]),
    "float64": (
        partial(odd, *FLAT, dtypes=(np.float64,)),
        ["NormalizeObservation", "NormalizeReward"],
    ),
    "no numbers": (partial(odd, *FLAT, finite=False), ["NormalizeObservation", "NormalizeReward"]),
    "types that change": (
        partial(
            odd,
            *FLAT,
            "ClipReward",
            dtypes=(np.float32, np.float64, np.float16),
            rewards=(float, np.float32, int, np.float64),
        ),
        ["ClipReward", "NormalizeObservation", "NormalizeReward"],
    ),
    "rewards": (partial(odd, *CLIPPED), ["step", "NormalizeReward", "ClipReward"]),
    "rewards of float32": (
        partial(odd, *CLIPPED, rewards=(np.float32,)),
        ["step", "NormalizeReward", "ClipReward"],
    ),
    "actions": (partial(odd, *ACTIONS), ["ClipAction", "RescaleAction"]),
    "functions between": (
        lambda: w.ClipReward(
            w.TransformObservation(
                w.TransformReward(
                    w.TransformAction(odd(*FLAT, "ClipAction"), lambda action: action * 2, None),
                    lambda r: r + 1,
                ),
                lambda obs: obs * obs.dtype.type(3),
                None,
            ),
            -1.5,
        ),
        [
            "reward",
            "observation",
            "reward",
            "action",
            "ClipAction",
            "NormalizeObservation",
            "NormalizeReward",
        ],
    ),
    "a stack around": (
        partial(odd, *FLAT, "FrameStackObservation"),
        ["step", "NormalizeObservation", "NormalizeReward"],
    ),
}


def bits(value: Any) -> Any:
    """A value whose equality is that of its bits and types."""
    if isinstance(value, RunningMeanStd):
        return {name: bits(one) for name, one in vars(value).items()}
    if isinstance(value, (np.ndarray, np.generic)):
        # NaN has many bits.
        return (
            type(value),
            value.dtype,
            value.shape,
            np.where(np.isnan(value), np.nan, value).astype(value.dtype).tobytes(),
        )
    return (type(value), value) if isinstance(value, (bool, int, float)) else None


def states(env: Any) -> list[dict[str, Any]]:
    """The attributes of all wrappers that are numbers, arrays or statistics, apart from times."""
    found = []
    while isinstance(env, gymnasium.Wrapper):
        told = {name: bits(value) for name, value in vars(env).items() if "time" not in name}
        queues = {
            name: list(value)
            for name, value in vars(env).items()
            if name in ("return_queue", "length_queue")
        }
        found.append({"class": type(env).__name__, **told, **queues})
        env = env.env
    return found


def replay(batch: Any, env: Any, seed: int | None = SEED) -> int:
    """Steps `env` with the actions in `batch`. The number of episodes that end."""
    observation, _ = env.reset() if seed is None else env.reset(seed=seed)
    ends = 0
    dtype = env.observation_space.dtype
    for step, frame in enumerate(batch):
        np.testing.assert_array_equal(
            frame["observation"].numpy(), observation.astype(dtype), str(step)
        )
        action = frame["action"].numpy()
        observation, reward, terminated, truncated, _ = env.step(
            action if action.ndim else int(action)
        )
        after = frame["next"]
        np.testing.assert_array_equal(
            after["observation"].numpy(), observation.astype(dtype), str(step)
        )
        assert bits(after["reward"].numpy()[0]) == bits(np.float32(reward)), step
        assert (after["terminated"].item(), after["truncated"].item()) == (
            bool(terminated),
            bool(truncated),
        ), step
        if terminated or truncated:
            ends += 1
            observation, _ = env.reset()
    return ends


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STACKS)
def test_steps_are_those_of_gymnasium(name: str) -> None:
    make, works = STACKS[name]
    ours, theirs = make(), make()
    assert [work for work, *_ in peel(ours)[1]] == works
    with Collector(
        GymWrapper(ours, categorical_action_encoding=True),
        None,
        frames_per_batch=250,
        total_frames=500,
        seed=SEED,
    ) as collector:
        batches = [batch.clone() for batch in collector]
    assert replay(torch.cat(batches), theirs) >= 8
    assert states(ours) == states(theirs)
    inner = ours.unwrapped
    if isinstance(inner, Odd):
        assert list(map(bits, inner.taken)) == list(map(bits, theirs.unwrapped.taken))


def test_the_engine_runs_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    update = RunningMeanStd.update
    monkeypatch.setattr(
        RunningMeanStd, "update", lambda self, x: (calls.append(x.shape), update(self, x))[1]
    )
    env = cleanrl("Pendulum-v1", max_episode_steps=20)
    with Collector(GymWrapper(env), None, frames_per_batch=100, seed=SEED) as collector:
        next(collector)
    # Each of six resets, and the first reward, whose statistics are of another type than all later
    # ones.
    assert len(calls) == 7 and env.get_wrapper_attr("obs_rms").count == pytest.approx(106)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("frozen", [False, True])
def test_what_a_user_sets_between_batches_counts(frozen: bool) -> None:
    ours, theirs = (
        w.NormalizeReward(
            w.NormalizeObservation(gymnasium.make("Pendulum-v1", max_episode_steps=20))
        )
        for _ in range(2)
    )
    held = []

    def change(env: Any) -> None:
        held.append((env.env.obs_rms.mean, env.env.obs_rms.mean.copy()))
        env.update_running_mean = env.env.update_running_mean = not frozen
        env.env.obs_rms = copy.deepcopy(env.env.obs_rms)
        env.env.obs_rms.mean = env.env.obs_rms.mean + np.float32(0.5)
        env.return_rms.var, env.gamma, env.env.epsilon = np.float64(4), 0.5, 1e-2

    with Collector(GymWrapper(ours), None, frames_per_batch=40, seed=SEED) as collector:
        first = next(collector).clone()
        replay(first, theirs)
        assert states(ours) == states(theirs)
        change(ours), change(theirs)
        second = next(collector).clone()
    # It begins with a reset that was made before anything changed.
    assert replay(second[1:], _stepped(theirs, second[0])) == 2
    assert states(ours) == states(theirs)
    for mean, before in held:
        assert (mean == before).all()


def test_a_function_that_a_user_replaces_counts() -> None:
    stacks = [
        w.TransformObservation(
            odd("NormalizeReward", "ClipReward", "ClipAction"), lambda x: np.clip(x, -1, 1), None
        )
        for _ in range(2)
    ]
    ours, theirs = stacks

    def change(env: Any) -> None:
        env.func, env.env.func, env.env.env.func = (
            (lambda x: x * 2),
            (lambda x: x * np.float32(0.5)),
            (lambda x: x - 1),
        )

    with Collector(GymWrapper(ours), None, frames_per_batch=40, seed=SEED) as collector:
        replay(next(collector).clone(), theirs)
        change(ours), change(theirs)
        batch = next(collector).clone()
    replay(batch[1:], _stepped(theirs, batch[0]))
    assert states(ours) == states(theirs) and batch["next", "observation"].max() > 2
    assert list(map(bits, ours.unwrapped.taken)) == list(map(bits, theirs.unwrapped.taken))


def _stepped(env: Any, frame: Any) -> Any:
    """`env` after the step of `frame`, which a reset then leaves alone."""
    observation, *_ = env.step(frame["action"].numpy())

    class Begun(gymnasium.Wrapper):
        begun = False

        def reset(self, **kwargs: Any) -> Any:
            if self.begun:
                return self.env.reset()
            self.begun = True
            return observation, {}

    return Begun(env)


def test_actions_that_last_for_several_steps() -> None:
    ours, theirs = (
        w.RescaleAction(w.NormalizeReward(Odd((np.float32,), (float,))), -0.3, 0.7)
        for _ in range(2)
    )
    with Collector(
        GymWrapper(ours, frame_skip=3), None, frames_per_batch=60, seed=SEED
    ) as collector:
        batch = next(collector).clone()
    observation, _ = theirs.reset(seed=SEED)
    for frame in batch:
        earned = np.float64(0)
        for _ in range(3):
            observation, reward, terminated, truncated, _ = theirs.step(frame["action"].numpy())
            earned = reward + earned
            if terminated or truncated:
                break
        assert frame["next", "reward"].item() == np.float32(earned)
        np.testing.assert_array_equal(frame["next", "observation"].numpy(), observation)
        if terminated or truncated:
            theirs.reset()
    assert states(ours) == states(theirs)


@pytest.mark.parametrize("several", [False, True], ids=["one each", "two each"])
def test_environments_of_workers(several: bool) -> None:
    make = partial(cleanrl, "Pendulum-v1", max_episode_steps=20)
    given = partial(SerialEnv, 2, make) if several else make
    with MultiSyncCollector(
        [given] * 2, None, frames_per_batch=160, seed=SEED, cat_results="stack"
    ) as collector:
        batch = next(collector).clone()
    rows = batch.reshape(-1, batch.shape[-1])
    assert rows.shape[0] == (4 if several else 2)
    # Each environment has statistics of its own, and its seed follows from that of the collector.
    for number, row in enumerate(rows):
        assert replay(row, make(), SEED + number) == len(row) // 20


class Kept(w.NormalizeObservation):
    """A class of the user's."""


def _patched() -> Any:
    env = w.NormalizeReward(gymnasium.make("CartPole-v1"))
    env.step = env.env.step  # type: ignore[method-assign]
    return env


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (lambda: Kept(w.NormalizeReward(gymnasium.make("CartPole-v1"))), "Kept"),
        (
            lambda: w.NormalizeReward(w.TimeAwareObservation(gymnasium.make("CartPole-v1"))),
            "TimeAwareObservation",
        ),
        (_patched, "NormalizeReward"),
        (lambda: gymnasium.make("CartPole-v1"), "TimeLimit"),
        (lambda: w.NormalizeReward(gymnasium.make("CartPole-v1")), "TimeLimit"),
        (lambda: w.TransformReward(Odd((), ()), abs), "TransformReward"),
    ],
)
def test_what_is_not_exactly_gymnasiums_stays_in_python(make: Callable[[], Any], left: str) -> None:
    assert type(peel(make())[0]).__name__ == left


def test_another_version_of_gymnasium_stays_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    env = w.NormalizeReward(gymnasium.make("CartPole-v1"))
    for version in ("0.29.1", "1.5.0", "2.0.0a1"):
        monkeypatch.setattr(gymnasium, "__version__", version)
        assert peel(env) == (env, [])


FIVE = 5


@pytest.mark.parametrize(
    ("func", "bounds"),
    [
        (lambda obs: np.clip(obs, -10, 10), [-10, 10]),
        (lambda x: np.clip(x, -0.5, 1e9), [-0.5, 1e9]),
        (lambda x: np.clip(x, 0, 255), [0, 255]),
        (lambda x: np.clip(x, 10, -10), None),
        (lambda x: np.clip(x, -FIVE, FIVE), None),
        (lambda x: np.clip(x, -5, a_max=5), None),
        (lambda x: np.clip(x, -5, 5) + 0, None),
        (lambda x: np.fmin(x, -5, 5), None),
        (lambda x, y=0: np.clip(x, -5, 5), None),
        (np.clip, None),
        (partial(np.clip, a_min=-1, a_max=1), None),
    ],
)
def test_clipping_is_known_by_its_code(func: Any, bounds: Any) -> None:
    env = w.TransformObservation(w.NormalizeObservation(Odd((np.float32,), (float,))), func, None)
    work, _, _, arguments = peel(env)[1][0]
    assert (work, arguments) == (
        ("TransformObservation", bounds) if bounds else ("observation", None)
    )


def test_a_step_that_fails_says_so(scripted: Any) -> None:
    env = w.NormalizeReward(w.NormalizeObservation(scripted(RuntimeError("broken"))))
    with (
        Collector(GymWrapper(env), None, frames_per_batch=4) as collector,
        pytest.raises(Exception, match="broken"),
    ):
        next(collector)
    env = w.TransformReward(
        w.NormalizeReward(scripted(np.zeros(3, np.float32))), lambda reward: 1 / 0
    )
    with (
        Collector(GymWrapper(env), None, frames_per_batch=4) as collector,
        pytest.raises(Exception, match="division by zero"),
    ):
        next(collector)


def test_ids_of_gymnasium_run_natively_as_well() -> None:
    with Collector(
        GymEnv("CartPole-v1", backend="gymnasium", max_episode_steps=6),
        None,
        frames_per_batch=60,
        seed=SEED,
    ) as collector:
        batch = next(collector)
    ends = batch["next", "truncated"].flatten().nonzero().flatten()
    assert len(ends) >= 9 and torch.diff(ends).max() == 6
