"""Learns a task by a library's own script until its return is reached, in a process that does
nothing else.

``python -m board.learn LIBRARY TASK SEED [FOLDER]`` prints what came of it as one line of JSON
behind :data:`MARK`. The return is the mean of the last hundred episodes of training. Where a
library has environments of Gymnasium, it is taken from these; elsewhere from what the library logs.
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import os
import runpy
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

#: Behind this, the line with the result.
MARK = "board: "
#: Episodes of which the mean return counts.
EPISODES = 100
RECIPES = Path(__file__).parents[2] / "examples" / "python"


class Task(NamedTuple):
    """What is to be learned, and how much time there is for it."""

    env: str
    goal: float
    minutes: float
    #: Steps of Gymnasium's environment that are one of the policy.
    skip: int = 1


TASKS = {
    "cartpole": Task("CartPole-v1", 475.0, 10),
    "pendulum": Task("Pendulum-v1", -200.0, 30),
    "cheetah-ppo": Task("HalfCheetah-v4", 1500.0, 60),
    "cheetah-sac": Task("HalfCheetah-v4", 3000.0, 300),
    "breakout": Task("BreakoutNoFrameskip-v4", 4.0, 30, skip=4),
}


class Run:
    """A run of a task, which ends its process when the return is reached."""

    def __init__(self, name: str, seed: int, folder: Path | None) -> None:
        self.name, self.task, self.seed = name, TASKS[name], seed
        self._folder = folder
        self._returns: collections.deque[float] = collections.deque(maxlen=EPISODES)
        self.frames = 0
        self._best: float | None = None
        # As the process began, with all that it has to import.
        self._began = time.time() - time.monotonic() + _monotonic_start()

    @property
    def folder(self) -> Path:
        """Where the repository of the library is, whose scripts no package has."""
        if self._folder is None:
            self.end("expected the folder of a clone of the library's repository", 2)
        return self._folder

    def ended(self, episode_return: float) -> None:
        """Takes the return of an episode of training."""
        self._returns.append(float(episode_return))
        if len(self._returns) == EPISODES:
            self.mean(sum(self._returns) / EPISODES)

    def mean(self, mean: float) -> None:
        """Takes the mean return of the last hundred episodes."""
        self._best = mean if self._best is None else max(self._best, mean)
        if mean >= self.task.goal:
            self.end("reached", 0)

    def end(self, outcome: str, status: int) -> NoReturn:
        """Ends the process, and says what came of it."""
        found = {
            "outcome": outcome,
            "seconds": round(time.time() - self._began, 2),
            "frames": self.frames,
            "best": self._best,
        }
        print(f"\n{MARK}{json.dumps(found)}", flush=True)
        # Threads and processes of libraries are not waited for.
        os._exit(status)


def _monotonic_start() -> float:
    """When this process began, by the monotonic clock; now, where the system does not tell."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.monotonic() - (
            time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        )
    except (OSError, AttributeError, ValueError):
        return time.monotonic()


def watched(run: Run) -> None:
    """Has all environments that Gymnasium makes from now on tell ``run`` of their episodes."""
    import gymnasium

    made = gymnasium.make

    steps = itertools.count(1)

    class Told(gymnasium.Wrapper[Any, Any, Any, Any]):
        total = 0.0

        def reset(self, **arguments: Any) -> Any:
            self.total = 0.0
            return self.env.reset(**arguments)

        def step(self, action: Any) -> Any:
            stepped = self.env.step(action)
            self.total += float(stepped[1])
            run.frames = next(steps) // run.task.skip
            if stepped[2] or stepped[3]:
                run.ended(self.total)
            return stepped

    @functools.wraps(made)
    def make(*given: Any, **named: Any) -> Any:
        return Told(made(*given, **named))

    gymnasium.make = make


def script(path: Path, *arguments: str) -> None:
    """Runs a script as Python does, in its folder."""
    os.chdir(path.parent)
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path), *arguments]
    runpy.run_path(str(path), run_name="__main__")


def recipe(run: Run, name: str, *arguments: str) -> None:
    """A script of windrow's, which logs the mean of its last hundred episodes ten times a
    second.
    """
    import windrow.collectors

    class Logger:
        """In the place of TensorBoard's ``SummaryWriter``."""

        def __init__(self, *_: Any) -> None:
            self.ended = 0.0

        def add_scalar(self, key: str, value: float, step: int) -> None:
            run.frames = step
            if key == "rollout/episodes":
                self.ended = value
            elif key == "rollout/ep_rew_mean" and self.ended >= EPISODES:
                run.mean(value)

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_, **__: None

    board: Any = types.ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = Logger
    sys.modules["torch.utils.tensorboard"] = board
    collector = windrow.collectors.Collector
    windrow.collectors.Collector = functools.partial(collector, log_interval=0.1)  # type: ignore[misc, assignment]
    script(RECIPES / name, "--seed", str(run.seed), "--log", "unused", *arguments)


def stable_baselines(run: Run, library: str) -> None:
    """Stable-Baselines3, or SBX, with the settings of RL Baselines3 Zoo."""
    import importlib

    from stable_baselines3.common.env_util import make_vec_env

    watched(run)
    algorithms = importlib.import_module(library)
    name = run.task.env

    def falling(first: float) -> Callable[[float], float]:
        return lambda left: left * first

    def ppo(envs: int, frames: int, **settings: Any) -> None:
        algorithms.PPO(
            "MlpPolicy",
            make_vec_env(name, envs, seed=run.seed),
            seed=run.seed,
            device="cpu",
            **settings,
        ).learn(frames)

    if run.name == "cartpole":
        ppo(
            8,
            1_000_000,
            n_steps=32,
            batch_size=256,
            gae_lambda=0.8,
            gamma=0.98,
            n_epochs=20,
            ent_coef=0.0,
            learning_rate=falling(1e-3),
            clip_range=falling(0.2),
        )
    elif run.name == "pendulum":
        ppo(
            4,
            1_000_000,
            n_steps=1024,
            gae_lambda=0.95,
            gamma=0.9,
            n_epochs=10,
            ent_coef=0.0,
            learning_rate=1e-3,
            clip_range=0.2,
            use_sde=True,
            sde_sample_freq=4,
        )
    elif run.name == "cheetah-ppo":
        ppo(
            1,
            1_000_000,
            batch_size=64,
            n_steps=512,
            gamma=0.98,
            learning_rate=2.0633e-05,
            ent_coef=0.000401762,
            clip_range=0.1,
            n_epochs=20,
            gae_lambda=0.92,
            max_grad_norm=0.8,
            vf_coef=0.58096,
        )
    elif run.name == "breakout":
        import ale_py
        import gymnasium
        from stable_baselines3.common.env_util import make_atari_env
        from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
        from stable_baselines3.common.vec_env import VecFrameStack
        from torch import nn

        class Small(BaseFeaturesExtractor):
            """The network of windrow's script."""

            def __init__(self, space: Any) -> None:
                super().__init__(space, 256)
                layers = (
                    nn.Conv2d(4, 16, 8, 4),
                    nn.ReLU(),
                    nn.Conv2d(16, 32, 4, 2),
                    nn.ReLU(),
                    nn.Flatten(),
                    nn.Linear(2592, 256),
                    nn.ReLU(),
                )
                self.layers = nn.Sequential(*layers)

            def forward(self, pictures: Any) -> Any:
                return self.layers(pictures)

        gymnasium.register_envs(ale_py)
        pictures = VecFrameStack(make_atari_env(name, 8, seed=run.seed), 4)
        network = {"features_extractor_class": Small, "net_arch": []}
        algorithms.PPO(
            "CnnPolicy",
            pictures,
            n_steps=128,
            n_epochs=4,
            batch_size=256,
            learning_rate=falling(2.5e-4),
            clip_range=falling(0.1),
            vf_coef=0.5,
            ent_coef=0.01,
            policy_kwargs=network,
            seed=run.seed,
            device="cpu",
        ).learn(10_000_000)
    else:
        algorithms.SAC(
            "MlpPolicy", name, learning_starts=10_000, seed=run.seed, device="cpu"
        ).learn(1_000_000)


def cleanrl(run: Run) -> None:
    """CleanRL's script for the task, with its own settings."""
    watched(run)
    # Scripts with a buffer import it from there.
    sys.path.insert(0, str(run.folder))
    name = {
        "cartpole": "ppo.py",
        "cheetah-ppo": "ppo_continuous_action.py",
        "breakout": "ppo_atari.py",
    }.get(run.name, "sac_continuous_action.py")
    script(
        run.folder / "cleanrl" / name,
        "--env-id",
        run.task.env,
        "--seed",
        str(run.seed),
        "--no-cuda",
    )


def torchrl(run: Run) -> None:
    """The script of TorchRL's sota-implementations."""
    watched(run)
    quiet = "logger.backend="
    if run.name == "cartpole":
        script(
            run.folder / "sota-implementations" / "dqn" / "dqn_cartpole.py",
            quiet,
            f"env.seed={run.seed}",
        )
    elif run.name == "cheetah-ppo":
        script(
            run.folder / "sota-implementations" / "ppo" / "ppo_mujoco.py",
            quiet,
            f"env.env_name={run.task.env}",
        )
    elif run.name == "breakout":
        script(
            run.folder / "sota-implementations" / "ppo" / "ppo_atari.py",
            quiet,
            f"env.env_name={run.task.env}",
        )
    else:
        script(
            run.folder / "sota-implementations" / "sac" / "sac.py",
            quiet,
            f"env.name={run.task.env}",
            f"env.seed={run.seed}",
        )


def rlox(run: Run) -> None:
    """rlox's trainer with its own settings."""
    from rlox import Callback, Trainer

    class Told(Callback):  # type: ignore[misc]
        seen = 0

        def on_step(self, **named: Any) -> bool:
            collector, config = named["algo"].collector, named["algo"].config
            run.frames += config.n_envs * config.n_steps
            ended = list(collector._completed_rewards)
            for one in ended[self.seen :]:
                run.ended(one)
            self.seen = len(ended)
            return True

    if run.name == "cheetah-sac":
        run.end("its trainer of SAC does not tell of episodes of training", 2)
    if run.name == "breakout":
        run.end("it has no script that learns from pictures", 2)
    Trainer("ppo", run.task.env, callbacks=[Told()], seed=run.seed).train(1_000_000)


def windrow(run: Run) -> None:
    """windrow's own programs."""
    if run.name == "cartpole":
        # Its policy is good before episodes in which it explores are.
        recipe(run, "ppo.py", "--frames", "204800")
    elif run.name == "pendulum":
        recipe(run, "ppo_continuous.py")
    elif run.name == "cheetah-ppo":
        recipe(run, "ppo_continuous.py", "--env", run.task.env)
    elif run.name == "breakout":
        recipe(run, "ppo_atari.py", "--device", "cpu")
    else:
        recipe(
            run, "sac.py", "--env", run.task.env, "--frames", "1000000", "--random-frames", "10000"
        )


LIBRARIES: dict[str, Callable[[Run], None]] = {
    "windrow": windrow,
    "cleanrl": cleanrl,
    "stable-baselines3": lambda run: stable_baselines(run, "stable_baselines3"),
    "sbx-rl": lambda run: stable_baselines(run, "sbx"),
    "torchrl": torchrl,
    "rlox": rlox,
}


def main() -> None:
    library, task, seed, *folder = sys.argv[1:]
    run = Run(task, int(seed), Path(folder[0]).resolve() if folder else None)
    try:
        LIBRARIES[library](run)
    except Exception as error:
        run.end(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}", 1)
    run.end("not reached", 1)


if __name__ == "__main__":
    main()
