"""Native environments beside those of Gymnasium: the same seeds and actions, and all that both
return, value by value.

``python -m certify [ENV ...] [--steps N] [--write FOLDER]`` compares these, or all that windrow
has, and writes a certificate of each. ``cargo xtask certify`` builds the package and does the same.
An environment needs nothing here but, where there are any, a line in :data:`ARGUMENTS` and one in
:data:`TOLERANCES`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import windrow
from windrow._windrow import mujoco_arguments, native_ids
from windrow.vectors._engine import EngineVector

#: Arguments with which environments are compared, too; each set for a tenth of the steps.
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "Blackjack-v1": [{"sab": False}, {"sab": False, "natural": True}],
    "CliffWalking-v1": [{"is_slippery": True}],
    "FrozenLake-v1": [
        {"is_slippery": False},
        {"success_rate": 0.75, "map_name": "8x8"},
        {"desc": ["SFHF", "FXFS", "HFFG"], "reward_schedule": (2, -1.5, -0.25)},
    ],
    "FrozenLake8x8-v1": [{"is_slippery": False}],
    "Taxi-v4": [
        {"is_rainy": True},
        {"fickle_passenger": True},
        {
            "is_rainy": True,
            "rainy_probability": 0.6,
            "fickle_passenger": True,
            "fickle_probability": 0.9,
        },
    ],
    "Ant-v4": [
        {
            "use_contact_forces": True,
            "contact_force_range": (-0.1, 0.3),
            "terminate_when_unhealthy": False,
        }
    ],
    "Ant-v5": [
        {
            "main_body": "aux_1",
            "contact_cost_weight": 0.01,
            "exclude_current_positions_from_observation": False,
        },
        {"main_body": 3, "include_cfrc_ext_in_observation": False, "healthy_z_range": (0.4, 0.9)},
    ],
    "HalfCheetah-v4": [
        {"reset_noise_scale": 0.0, "forward_reward_weight": 2, "max_episode_steps": 7}
    ],
    "HalfCheetah-v5": [
        {
            "frame_skip": 3,
            "ctrl_cost_weight": 0.3,
            "exclude_current_positions_from_observation": False,
        }
    ],
    "Hopper-v4": [{"healthy_reward": 0.25, "healthy_angle_range": (-0.1, 0.1)}],
    "Hopper-v5": [
        {
            "healthy_z_range": (0.2, 9.5),
            "healthy_state_range": (-4.0, 5.0),
            "terminate_when_unhealthy": False,
        }
    ],
    "Humanoid-v4": [
        {"exclude_current_positions_from_observation": False, "terminate_when_unhealthy": False}
    ],
    "Humanoid-v5": [
        {
            "include_cvel_in_observation": False,
            "contact_cost_range": (0.0, 1e-3),
            "contact_cost_weight": 1e-4,
        }
    ],
    "HumanoidStandup-v5": [
        {
            "impact_cost_range": (0.5, 2.0),
            "impact_cost_weight": 1e-3,
            "include_cinert_in_observation": False,
        }
    ],
    "InvertedDoublePendulum-v5": [{"healthy_reward": 3.0, "reset_noise_scale": 0.3}],
    "InvertedPendulum-v5": [{"reset_noise_scale": 0.15}],
    "Pusher-v5": [{"reward_near_weight": 1.5, "max_episode_steps": 20}],
    "Reacher-v5": [{"reward_dist_weight": 3, "reward_control_weight": 0.5}],
    "Swimmer-v4": [
        {"forward_reward_weight": 3, "exclude_current_positions_from_observation": False}
    ],
    "Swimmer-v5": [{"exclude_current_positions_from_observation": False, "frame_skip": 2}],
    "Walker2d-v4": [{"healthy_z_range": (0.9, 1.5), "terminate_when_unhealthy": False}],
    "Walker2d-v5": [{"xml_file": "walker2d.xml", "healthy_angle_range": [-0.5, 0.7]}],
}

#: How far values may be apart, in units in the last place, and why. All others are equal.
TOLERANCES: dict[str, tuple[int, str]] = {}

#: Environments side by side.
ENVS = 16
#: Networks that are drawn, and of these the best, by which the environments are played.
DRAWN, BEST = 128, 4
#: Steps of an episode that shows how good a network is.
TRIAL = 300
#: How often an action is random in half of the episodes that a network plays, and how often an
#: episode is cut short.
RANDOM, CUT = 0.1, 1 / 2000
#: Of two words, and the highest.
WIDE = [2**32 + 7, 2**64 - 1]


class Networks:
    """Maps of observations to scores of choices, or to actions between their bounds: linear, with
    random weights.
    """

    def __init__(
        self,
        space: spaces.Space[Any],
        acted: spaces.Space[Any],
        count: int,
        rng: np.random.Generator,
    ) -> None:
        self._space = space
        self._outputs = (
            int(acted.n)
            if isinstance(acted, spaces.Discrete)
            else int(np.prod(acted.shape or (1,)))
        )
        inputs = _inputs(space, _nothing(space, 1)).shape[1]
        self._weights = rng.normal(size=(count, self._outputs, inputs + 1))

    def keep(self, numbers: np.ndarray) -> None:
        """Keeps these."""
        self._weights = self._weights[numbers]

    def scores(self, seen: Any, which: np.ndarray) -> np.ndarray:
        """Those of the networks ``which``, one for each environment."""
        inputs = _inputs(self._space, seen)
        weights = self._weights[which]
        return np.einsum("eoi,ei->eo", weights[:, :, :-1], inputs) + weights[:, :, -1]


def _inputs(space: spaces.Space[Any], seen: Any) -> np.ndarray:
    """What a network reads of observations of several environments."""
    if isinstance(space, spaces.Tuple):
        return np.concatenate(
            [_inputs(inner, part) for inner, part in zip(space.spaces, seen, strict=True)], 1
        )
    if isinstance(space, spaces.Dict):
        return np.concatenate(
            [_inputs(inner, seen[name]) for name, inner in space.spaces.items()], 1
        )
    if isinstance(space, spaces.Discrete):
        return np.eye(int(space.n))[seen]
    assert isinstance(space, spaces.Box)
    scale = np.where(np.isfinite(space.high) & (space.high > 0), space.high, 1.0)
    return np.tanh(seen / scale).reshape(len(seen), -1)


def _nothing(space: spaces.Space[Any], count: int) -> Any:
    if isinstance(space, spaces.Tuple):
        return tuple(_nothing(inner, count) for inner in space.spaces)
    if isinstance(space, spaces.Dict):
        return {name: _nothing(inner, count) for name, inner in space.spaces.items()}
    return np.zeros((count, *(space.shape or ())), space.dtype)


def solved(transitions: Any) -> np.ndarray:
    """The value of each action in each state of an environment that is a table, as Gymnasium's toy
    texts have it under ``P``.
    """
    rows = [
        (state, action, *way)
        for state, actions in transitions.items()
        for action, ways in actions.items()
        for way in ways
    ]
    state, action, chance, reached, reward, over = (
        np.array(column) for column in zip(*rows, strict=True)
    )
    values = np.zeros((len(transitions), len(transitions[0])))
    for _ in range(200):
        gains = chance * (reward + 0.99 * values.max(1)[reached] * ~over)
        values = np.zeros_like(values)
        np.add.at(values, (state, action), gains)
    return values


class Player:
    """Acts for all environments: at random, as one of the best networks does, or as the values of a
    table say, in some episodes each.
    """

    def __init__(
        self, env_name: str, arguments: dict[str, Any], env: Any, observed: Any, acted: Any
    ) -> None:
        self._acted, self._rng = acted, np.random.default_rng(5)
        #: Where it is a table; and the environments that follow it.
        self._values = solved(env.unwrapped.P) if hasattr(env.unwrapped, "P") else None
        self._solves = np.zeros(ENVS, bool)
        self._networks = Networks(observed, acted, DRAWN, self._rng)
        self._networks.keep(self._best(env_name, arguments))
        #: The network of each environment, and how often its actions are random.
        self._plays, self._random = np.zeros(ENVS, int), np.zeros(ENVS)

    def begin(self, env: int) -> None:
        """Chooses who plays the next episode of ``env``."""
        self._plays[env], self._random[env] = (
            self._rng.integers(BEST),
            self._rng.choice([0.0, RANDOM, 1.0]),
        )
        self._solves[env] = self._values is not None and self._rng.random() < 0.5

    def act(self, seen: Any) -> np.ndarray:
        """Actions of all environments."""
        follows = self._rng.random(ENVS) >= self._random
        scores = self._networks.scores(seen, self._plays)
        return self._of(
            scores
            if self._values is None
            else np.where(self._solves[:, None], self._values[seen], scores),
            follows,
        )

    def _of(self, scores: np.ndarray, follows: np.ndarray) -> np.ndarray:
        count = len(scores)
        if isinstance(self._acted, spaces.Discrete):
            return np.where(
                follows, scores.argmax(1), self._rng.integers(int(self._acted.n), size=count)
            )
        low, high = (
            np.nan_to_num(bound.astype(np.float64), posinf=1.0, neginf=-1.0).ravel()
            for bound in (self._acted.low, self._acted.high)
        )
        # At the bounds, just within, and beyond.
        played = np.clip(scores, -1, 1) * self._rng.choice([1.0, 0.9999, 1.3], size=scores.shape)
        shares = np.where(
            follows[:, None], played, self._rng.uniform(-1.25, 1.25, size=scores.shape)
        )
        actions = (low + high) / 2 + shares * (high - low) / 2
        return actions.astype(self._acted.dtype).reshape(count, *self._acted.shape)

    def _best(self, env_name: str, arguments: dict[str, Any]) -> np.ndarray:
        """The networks of the highest returns."""
        envs = windrow.make_vec(env_name, DRAWN, native=True, **arguments)
        seen, _ = envs.reset(seed=1)
        returns, runs = np.zeros(DRAWN), np.ones(DRAWN, bool)
        for _ in range(TRIAL):
            scores = self._networks.scores(seen, np.arange(DRAWN))
            seen, reward, terminated, truncated, _ = envs.step(self._of(scores, runs))
            returns += reward * runs
            runs &= ~(terminated | truncated)
            if not runs.any():
                break
        envs.close()
        return returns.argsort(kind="stable")[-BEST:]


class Run:
    """Both sides for some steps, and what was found."""

    def __init__(
        self, env_name: str, arguments: dict[str, Any], theirs: dict[str, Any] | None = None
    ) -> None:
        made = [
            gymnasium.make(
                env_name, disable_env_checker=True, **(arguments if theirs is None else theirs)
            )
            for _ in range(ENVS)
        ]
        self._theirs: list[Any] = made
        self._ours = windrow.make_vec(
            env_name, ENVS, autoreset_mode="Disabled", native=True, **arguments
        )
        if not isinstance(self._ours, EngineVector):
            raise SystemExit(f"{env_name} with {arguments} is not native")
        for name in ("observation_space", "action_space"):
            own, other = getattr(self._ours, f"single_{name}"), getattr(made[0], name)
            if own != other:
                raise SystemExit(
                    f"{env_name} with {arguments}: the {name} is {own}, Gymnasium's is {other}"
                )
        assert made[0].spec is not None
        self.arguments, self.steps, self.episodes, self.seeds = arguments, 0, 0, 0
        self.terminated, self.truncated = 0, 0
        self.values, self.differing, self.ulps, self.largest = 0, 0, 0, 0.0
        #: Entries of info that are compared, and those that windrow does not have.
        self.info: set[str] = set()
        self.left_out: set[str] = set()
        self._player = Player(
            env_name,
            arguments,
            made[0],
            self._ours.single_observation_space,
            self._ours.single_action_space,
        )
        self._draws = np.random.default_rng(3)

    def go(self, steps: int) -> Run:
        """Takes ``steps`` steps, over all environments."""
        seen = self._reset(np.ones(ENVS, bool))
        while self.steps < steps:
            actions = self._player.act(seen)
            seen, *outcome, info = self._ours.step(actions)
            taken = (
                [int(action) for action in actions]
                if isinstance(self._ours.single_action_space, spaces.Discrete)
                else list(actions.copy())
            )
            observations, *theirs, infos = zip(
                *(env.step(action) for env, action in zip(self._theirs, taken, strict=True)),
                strict=True,
            )
            self.steps += ENVS
            self._compare(seen, _stacked(self._ours.single_observation_space, observations))
            # A reward of classic control and of Blackjack has the digits of a float32.
            reward = np.float32 if self._ours._exact is None else np.float64
            for own, other, dtype in zip(
                outcome, theirs, (reward, np.bool_, np.bool_), strict=True
            ):
                self._compare(own.astype(dtype), np.array(other).astype(dtype))
            self._compare_infos(info, infos, np.ones(ENVS, bool))
            terminated, truncated = np.array(theirs[1]), np.array(theirs[2])
            self.terminated += int(terminated.sum())
            self.truncated += int((truncated & ~terminated).sum())
            over = (
                terminated | truncated | outcome[1] | outcome[2] | (self._draws.random(ENVS) < CUT)
            )
            if over.any():
                seen = self._reset(over)
        for env in (self._ours, *self._theirs):
            env.close()
        return self

    def _reset(self, which: np.ndarray) -> Any:
        """Begins an episode in each of ``which``: the observations of all."""
        seeds: list[int | None] = [None] * ENVS
        for env in which.nonzero()[0].tolist():
            self._player.begin(env)
            # The first needs one, and some of the others have one.
            if self.episodes < ENVS or self._draws.random() < 0.25:
                seeds[env] = WIDE[self.seeds % 2] if self.seeds % 50 < 2 else self.seeds
                self.seeds += 1
            self.episodes += 1
        seen, info = self._ours.reset(seed=seeds, options={"reset_mask": which})
        began = [
            env.reset(seed=seed)
            for env, seed, begins in zip(self._theirs, seeds, which.tolist(), strict=True)
            if begins
        ]
        observations, infos = zip(*began, strict=True)
        self._compare(
            _picked(seen, which), _stacked(self._ours.single_observation_space, observations)
        )
        self._compare_infos(info, infos, which)
        return seen

    def _compare(self, ours: Any, theirs: Any) -> None:
        if isinstance(ours, (tuple, dict)):
            pairs = (
                zip(ours, theirs, strict=True)
                if isinstance(ours, tuple)
                else ((ours[name], theirs[name]) for name in ours.keys() | theirs.keys())
            )
            for pair in pairs:
                self._compare(*pair)
            return
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            raise SystemExit(
                f"expected {theirs.dtype} of shape {theirs.shape}, as Gymnasium has it, got {ours.dtype} of shape {ours.shape}"
            )
        self.values += theirs.size
        if ours.tobytes() == theirs.tobytes():
            return
        own, other = _bits(ours), _bits(theirs)
        apart = own != other
        self.differing += int(apart.sum())
        # Python's integers do not overflow.
        self.ulps = max(
            self.ulps,
            *(abs(int(a) - int(b)) for a, b in zip(own[apart], other[apart], strict=True)),
        )
        self.largest = max(
            self.largest, float(np.abs(np.subtract(ours, theirs, dtype=np.float64)).max())
        )

    def _compare_infos(self, info: dict[str, Any], infos: Any, which: np.ndarray) -> None:
        if more := {name for name in info if not name.startswith("_")} - infos[0].keys():
            raise SystemExit(
                f"expected {list(infos[0])} in info, as Gymnasium has it, got {sorted(more)}"
            )
        for name in infos[0]:
            if name not in info:
                self.left_out.add(name)
                continue
            self.info.add(name)
            own, theirs = info[name][which], np.array([one[name] for one in infos])
            # FrozenLake's reset returns an integer as a probability.
            self._compare(own, theirs.astype(own.dtype) if theirs.dtype.kind == "i" else theirs)


def _stacked(space: spaces.Space[Any], observations: Any) -> Any:
    if isinstance(space, spaces.Tuple):
        return tuple(
            _stacked(inner, part)
            for inner, part in zip(space.spaces, zip(*observations, strict=True), strict=True)
        )
    if isinstance(space, spaces.Dict):
        return {
            name: _stacked(inner, [one[name] for one in observations])
            for name, inner in space.spaces.items()
        }
    return np.array(observations)


def _picked(seen: Any, which: np.ndarray) -> Any:
    if isinstance(seen, tuple):
        return tuple(_picked(part, which) for part in seen)
    return (
        {name: _picked(part, which) for name, part in seen.items()}
        if isinstance(seen, dict)
        else seen[which]
    )


def _bits(values: np.ndarray) -> np.ndarray:
    """Integers whose differences are those of ``values`` in units in the last place; both zeros
    differ, too.
    """
    if values.dtype.kind != "f":
        return values.astype(np.int64)
    bits = values.view(f"i{values.itemsize}")
    return np.where(bits < 0, np.iinfo(bits.dtype).min - bits - 1, bits)


def as_with_avx512(norm: Callable[..., Any]) -> Callable[..., Any]:
    """``np.linalg.norm`` as it is where OpenBLAS uses AVX-512, for vectors of up to three numbers:
    each square is added before it is rounded.

    Native environments do the same everywhere. Elsewhere, or where ``OPENBLAS_CORETYPE`` names
    another processor, OpenBLAS rounds each square, and distances differ in the last place (ADR
    0039).
    """

    def fused(vector: Any) -> np.float64:
        total = 0.0
        for value in map(float, vector):
            total = float(Fraction(value) ** 2 + Fraction(total))
        return np.float64(math.sqrt(total))

    def other(vector: Any, ord: Any = None, **arguments: Any) -> Any:
        short = not arguments and ord in (None, 2) and np.ndim(vector) == 1 and len(vector) <= 3
        return fused(vector) if short else norm(vector, ord, **arguments)

    vectors = np.random.default_rng(0).normal(size=(100, 3))
    return norm if all(norm(vector) == fused(vector) for vector in vectors) else other


def certificate(env_name: str, steps: int) -> dict[str, Any]:
    """What a comparison of an environment found, with each of its sets of arguments."""
    runs = [
        Run(env_name, arguments).go(steps if not arguments else steps // 10)
        for arguments in ({}, *ARGUMENTS.get(env_name, []))
    ]
    ulps, reason = TOLERANCES.get(env_name, (0, ""))
    libraries = ["gymnasium", "numpy", *(["mujoco"] if "mujoco" in sys.modules else [])]
    return {
        "environment": env_name,
        "versions": {"windrow": windrow.__version__}
        | {name: importlib.metadata.version(name) for name in libraries},
        "tolerance": {"ulps": ulps, "reason": reason},
        "runs": [
            {
                "arguments": run.arguments,
                "steps": run.steps,
                "seeds": run.seeds,
                "episodes": run.episodes,
                "terminated": run.terminated,
                "truncated": run.truncated,
                "info": {"compared": sorted(run.info), "left_out": sorted(run.left_out)},
                "values": run.values,
                "differing": run.differing,
                "largest_difference": {"ulps": run.ulps, "absolute": run.largest},
            }
            for run in runs
        ],
    }


def lines(certificate: dict[str, Any]) -> Iterator[str]:
    """The certificate in words, a line for each set of arguments."""
    versions = ", ".join(f"{name} {version}" for name, version in certificate["versions"].items())
    for run in certificate["runs"]:
        with_arguments = f" with {run['arguments']}" if run["arguments"] else ""
        yield (
            f"compared {run['steps']} steps of {certificate['environment']}{with_arguments}: {run['differing']} of {run['values']} values differ, "
            f"{run['seeds']} seeds, {run['terminated']} episodes terminated, {run['truncated']} truncated ({versions})"
        )


def holds(certificate: dict[str, Any]) -> bool:
    """Whether no value is further apart than it may be."""
    return all(
        run["largest_difference"]["ulps"] <= certificate["tolerance"]["ulps"]
        for run in certificate["runs"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="certify",
        description="Steps native environments beside Gymnasium's, and compares all that both return.",
    )
    parser.add_argument(
        "environments",
        nargs="*",
        metavar="ENV",
        help="an id; all that need no other library unless given",
    )
    parser.add_argument("--all", action="store_true", help="those that need MuJoCo, too")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="where certificates go")
    arguments = parser.parse_args()
    known = [*native_ids(), *mujoco_arguments()]
    if unknown := set(arguments.environments) - set(known):
        parser.error(
            f"windrow has no {', '.join(sorted(unknown))} of its own; it has {', '.join(known)}"
        )
    if (norm := as_with_avx512(np.linalg.norm)) is not np.linalg.norm:
        print(
            "np.linalg.norm is computed as with AVX-512, which OpenBLAS does not use here",
            flush=True,
        )
        np.linalg.norm = norm
    passed = True
    for env_name in arguments.environments or (known if arguments.all else native_ids()):
        found = certificate(env_name, arguments.steps)
        print(*lines(found), sep="\n", flush=True)
        if not holds(found):
            print(
                f"violation: {env_name} differs from Gymnasium's by more than {found['tolerance']['ulps']} units in the last place",
                flush=True,
            )
            passed = False
        elif arguments.write is not None:
            (arguments.write / f"{env_name}.json").write_text(json.dumps(found, indent=2) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
