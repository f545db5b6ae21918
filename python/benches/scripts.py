"""Collection as TorchRL's own scripts do it, by windrow's classes and by TorchRL's:
``cargo xtask bench scripts``.

Each line is ``name  value  target  ok|short``, as the benchmarks in Rust print it. Both sides have
the same environment, transforms, policy and arguments, and choose threads and processes by default.
``/ bare`` is over a loop that does nothing but step one environment of Gymnasium, with actions
drawn before. Ratios are medians over alternating repeats.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from tensordict.nn import (
    AddStateIndependentNormalScale,
    NormalParamExtractor,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn

from processes import Side, pace

REPEATS = 3
CHEETAH = "HalfCheetah-v5"


class Script(NamedTuple):
    """One of TorchRL's scripts: its environment, made with classes of ``envs``, and its policy for
    such an environment.
    """

    name: str
    id: str
    environment: Callable[[Any], Any]
    policy: Callable[[Any], Any]
    frames: int
    arguments: dict[str, Any] = {}


def mlp(inputs: int, outputs: int, cells: list[int], activation: type[nn.Module]) -> Any:
    """TorchRL's MLP."""
    from torchrl.modules import MLP

    return MLP(
        in_features=inputs, out_features=outputs, num_cells=cells, activation_class=activation
    )


def cartpole(envs: Any) -> Any:
    """DQN's CartPole."""
    env = envs.TransformedEnv(envs.GymEnv("CartPole-v1", device="cpu"))
    env.append_transform(envs.RewardSum())
    env.append_transform(envs.StepCounter())
    return env


def normalised(envs: Any) -> Any:
    """PPO's and A2C's HalfCheetah."""
    env = envs.TransformedEnv(envs.GymEnv(CHEETAH, device="cpu"))
    env.append_transform(envs.VecNorm(in_keys=["observation"], decay=0.99999, eps=1e-2))
    env.append_transform(envs.ClipTransform(in_keys=["observation"], low=-10, high=10))
    env.append_transform(envs.RewardSum())
    env.append_transform(envs.StepCounter())
    env.append_transform(envs.DoubleToFloat(in_keys=["observation"]))
    return env


def side_by_side(number: int) -> Callable[[Any], Any]:
    """HalfCheetahs of SAC, TD3 and DDPG."""

    def made(envs: Any) -> Any:
        cheetahs = envs.ParallelEnv(
            number,
            envs.EnvCreator(lambda: envs.GymEnv(CHEETAH, device="cpu")),
            serial_for_single=True,
        )
        around = envs.Compose(
            envs.InitTracker(), envs.StepCounter(1000), envs.DoubleToFloat(), envs.RewardSum()
        )
        return envs.TransformedEnv(cheetahs, around)

    return made


def dqn(env: Any) -> Any:
    """Values of actions, and exploration."""
    from torchrl.data import Composite
    from torchrl.modules import EGreedyModule, QValueActor

    spec = env.specs["input_spec", "full_action_spec", "action"]
    values = QValueActor(
        module=mlp(4, 2, [120, 84], nn.ReLU), spec=Composite(action=spec), in_keys=["observation"]
    )
    return TensorDictSequential(
        values,
        EGreedyModule(annealing_num_steps=250_000, eps_init=1.0, eps_end=0.05, spec=values.spec),
    )


def normal(env: Any, core: nn.Module, **options: Any) -> Any:
    """A ``ProbabilisticActor`` that draws from a squashed normal distribution."""
    from torchrl.modules import ProbabilisticActor, TanhNormal

    spec = env.action_spec_unbatched
    return ProbabilisticActor(
        TensorDictModule(core, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high, "tanh_loc": False},
        **options,
    )


def ppo(env: Any) -> Any:
    """The actor of PPO and A2C."""
    core = nn.Sequential(
        mlp(17, 6, [64, 64], nn.Tanh), AddStateIndependentNormalScale(6, scale_lb=1e-8)
    )
    return normal(env, core, return_log_prob=True)


def sac(env: Any) -> Any:
    """The actor of SAC."""
    extract = NormalParamExtractor(scale_mapping="biased_softplus_1.0", scale_lb=0.1)
    return normal(env, nn.Sequential(mlp(17, 12, [256, 256], nn.ReLU), extract))


def squashed(noise: str) -> Callable[[Any], Any]:
    """The actor of TD3 and DDPG, with the module that adds ``noise``."""

    def made(env: Any) -> Any:
        from torchrl import modules

        spec = env.action_spec_unbatched
        arguments = (
            {"annealing_num_steps": 1_000_000, "safe": False}
            if noise == "OrnsteinUhlenbeckProcessModule"
            else {"std": 0.1}
        )
        return TensorDictSequential(
            TensorDictModule(
                mlp(17, 6, [256, 256], nn.ReLU), in_keys=["observation"], out_keys=["param"]
            ),
            modules.TanhModule(in_keys=["param"], out_keys=["action"], spec=spec),
            getattr(modules, noise)(spec=spec, **arguments),
        )

    return made


OFF_POLICY = {"init_random_frames": 1000}
SCRIPTS = [
    Script(
        "DQN CartPole",
        "CartPole-v1",
        cartpole,
        dqn,
        1000,
        {"storing_device": "cpu", "max_frames_per_traj": -1, **OFF_POLICY},
    ),
    Script("PPO HalfCheetah", CHEETAH, normalised, ppo, 2048, {"max_frames_per_traj": -1}),
    Script("A2C HalfCheetah", CHEETAH, normalised, ppo, 640, {"max_frames_per_traj": -1}),
    Script("SAC HalfCheetah, 8", CHEETAH, side_by_side(8), sac, 1000, OFF_POLICY),
    Script(
        "TD3 HalfCheetah, 8",
        CHEETAH,
        side_by_side(8),
        squashed("AdditiveGaussianModule"),
        1000,
        OFF_POLICY,
    ),
    Script(
        "DDPG HalfCheetah",
        CHEETAH,
        side_by_side(1),
        squashed("OrnsteinUhlenbeckProcessModule"),
        1000,
        OFF_POLICY,
    ),
]


@contextmanager
def collecting(script: Script, package: str) -> Iterator[Side]:
    """Batches of ``package``, windrow or torchrl, after the random frames."""
    envs, collectors = (
        importlib.import_module(f"{package}.{name}") for name in ("envs", "collectors")
    )
    torch.manual_seed(0)
    env = script.environment(envs)
    collector = collectors.Collector(
        env,
        script.policy(env),
        frames_per_batch=script.frames,
        total_frames=-1,
        device="cpu",
        **script.arguments,
    )
    batches = iter(collector)
    try:
        for _ in range(2):
            next(batches)
        yield lambda: next(batches).numel()
    finally:
        collector.shutdown()


@contextmanager
def stepping(script: Script) -> Iterator[Side]:
    """Steps of one environment of Gymnasium, and nothing else."""
    import gymnasium

    env = gymnasium.make(script.id, disable_env_checker=True)
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(500)]

    def steps() -> int:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return len(actions)

    try:
        yield steps
    finally:
        env.close()


def measure(script: Script, least: float) -> tuple[float, float]:
    """windrow's frames a second over TorchRL's, and over those of bare steps."""
    with (
        collecting(script, "windrow") as own,
        collecting(script, "torchrl") as other,
        stepping(script) as bare,
    ):
        paces = [tuple(pace(side, least) for side in (own, other, bare)) for _ in range(REPEATS)]
    told = [f"{statistics.median(column):,.0f}" for column in zip(*paces, strict=True)]
    print(
        f"# {script.name}: frames/s of windrow {told[0]}, TorchRL {told[1]}, bare steps {told[2]}",
        flush=True,
    )
    return statistics.median(own / other for own, other, _ in paces), statistics.median(
        own / bare for own, _, bare in paces
    )


def main() -> int:
    """Prints every figure; 1 when one falls short and ``--check`` was given."""
    parser = argparse.ArgumentParser(description="Collection as in TorchRL's scripts.")
    parser.add_argument("--check", action="store_true", help="fail when a figure falls short")
    parser.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        help="how long each side runs in each repeat; 2 unless given",
    )
    parser.add_argument("--only", default="", help="measure only scripts whose names contain this")
    arguments = parser.parse_args()
    if importlib.util.find_spec("torchrl") is None or importlib.util.find_spec("mujoco") is None:
        print("torchrl or mujoco is not installed: nothing is measured")
        return 0
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    short, before = False, os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        # MuJoCo writes a file with its warnings where it runs.
        os.chdir(folder)
        for script in SCRIPTS:
            if arguments.only not in script.name:
                continue
            ratios = measure(script, arguments.seconds)
            for other, ratio, target in zip(("TorchRL", "bare"), ratios, (10.0, 0.6), strict=True):
                short |= ratio < target
                print(
                    f"{script.name} / {other}  {ratio:.2f}  >= {target}  {'ok' if ratio >= target else 'short'}",
                    flush=True,
                )
        os.chdir(before)
    return int(short and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
