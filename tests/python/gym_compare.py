"""Plays a Gymnasium environment and prints everything it did, for windrow to do the same.

Usage: python gym_compare.py ENV_ID SEEDS STEPS

Standard output starts with text lines that describe the environment, the last of which is "end"; then follow, for
each of SEEDS seeds, little-endian records without padding:

    seed                 uint64
    first observation    float32 [n]
    STEPS times:
        action           float64 (exact for both kinds of actions)
        observation      float32 [n]
        reward           float64
        terminated       uint8
        truncated        uint8
        after an end: first observation of the next episode, float32 [n] (unseeded reset)
"""

import struct
import sys

import gymnasium as gym
import numpy as np


class Lcg:
    """A small generator of its own: Gymnasium's must only be drawn from by the environment."""

    def __init__(self, seed: int) -> None:
        self.state = (seed * 2 + 1) % 2**64

    def random(self) -> float:
        """A number in [0, 1)."""
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 11) / 2**53


def balance(obs: np.ndarray) -> float:
    x, x_dot, theta, theta_dot = obs.tolist()
    return 0.05 * x + 0.1 * x_dot + 2.0 * theta + 0.5 * theta_dot


# The direction in which each task is solved, so that episodes end in every way that they can.
DIRECTIONS = {
    "CartPole-v1": balance,
    "Pendulum-v1": lambda obs: float(obs[2]),
    "MountainCar-v0": lambda obs: float(obs[1]),
    "MountainCarContinuous-v0": lambda obs: float(obs[1]),
    "Acrobot-v1": lambda obs: -float(obs[4]),
}


def choose(env: gym.Env, direction: float, skilled: bool, lcg: Lcg) -> float:
    """An action: random, or nine times out of ten in the direction given. Some lie beyond the bounds of a box."""
    draw, random = lcg.random(), lcg.random()
    follows = skilled and draw < 0.9
    if isinstance(env.action_space, gym.spaces.Discrete):
        choices = int(env.action_space.n)
        if follows:
            return float(choices - 1 if direction >= 0 else 0)
        return float(int(random * choices))
    bound = float(env.action_space.high[0])
    if follows:
        # Exactly the bound, just within, and beyond it.
        action = bound * (1.0, 0.9999, 1.3)[int(random * 3)]
        return float(np.float32(action if direction >= 0 else -action))
    return float(np.float32((random * 2.5 - 1.25) * bound))


def describe(env: gym.Env) -> None:
    """Prints the spaces and the time limit."""
    lines = [
        f"version {gym.__version__} numpy {np.__version__}",
        f"max_episode_steps {env.spec.max_episode_steps}",
    ]
    for name, space in (("observation", env.observation_space), ("action", env.action_space)):
        if isinstance(space, gym.spaces.Discrete):
            lines.append(f"{name} discrete {space.dtype} {space.start} {space.n}")
        else:
            bounds = np.stack([space.low, space.high], axis=-1).astype(np.float64)
            numbers = " ".join(repr(float(x)) for x in bounds.ravel())
            shape = "x".join(str(size) for size in space.shape)
            lines.append(f"{name} box {space.dtype} {shape} {numbers}")
    lines.append("end\n")
    sys.stdout.buffer.write("\n".join(lines).encode())


def play(env: gym.Env, env_id: str, seed: int, skilled: bool, steps: int) -> None:
    """Prints the records of one seed."""
    lcg = Lcg(seed)
    obs, _ = env.reset(seed=seed)
    parts = [struct.pack("<Q", seed), obs.astype("<f4").tobytes()]
    for _ in range(steps):
        action = choose(env, DIRECTIONS[env_id](obs), skilled, lcg)
        if isinstance(env.action_space, gym.spaces.Discrete):
            taken = int(action)
        else:
            taken = np.array([action], dtype=np.float32)
        obs, reward, terminated, truncated, _ = env.step(taken)
        assert obs.dtype == np.float32, obs.dtype
        parts.append(struct.pack("<d", action))
        parts.append(obs.astype("<f4").tobytes())
        parts.append(struct.pack("<dBB", float(reward), terminated, truncated))
        if terminated or truncated:
            obs, _ = env.reset()
            parts.append(obs.astype("<f4").tobytes())
    sys.stdout.buffer.write(b"".join(parts))


def main() -> None:
    env_id, seeds, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    env = gym.make(env_id, disable_env_checker=True)
    describe(env)
    # Seeds of one and of two words.
    wide = [2**32 + 7, 2**64 - 1]
    for i, seed in enumerate([*range(seeds - len(wide)), *wide]):
        play(env, env_id, seed, skilled=i % 2 == 1, steps=steps)


if __name__ == "__main__":
    main()
