"""PPO of Stable-Baselines3 on CartPole: `model.learn` as it is, environments that windrow steps.

pip install . gymnasium stable-baselines3
python examples/python/sb3_ppo.py
"""

from __future__ import annotations

import argparse
import statistics

import torch
from stable_baselines3 import PPO

from windrow.sb3 import VecEnv


def main() -> None:
    parser = argparse.ArgumentParser(description="Learns to balance with PPO.")
    parser.add_argument("--frames", type=int, default=50_000, help="frames in all")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    env = VecEnv("CartPole-v1", 8)
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=125,
        batch_size=250,
        n_epochs=4,
        learning_rate=1e-3,
        seed=arguments.seed,
        device="cpu",
    )
    model.learn(arguments.frames)
    # What `VecEnv` says of episodes, as a `Monitor` would.
    last = statistics.fmean(episode["r"] for episode in model.ep_info_buffer or [])
    print(f"mean return of the last {len(model.ep_info_buffer or [])} episodes: {last:.0f}")
    env.close()


if __name__ == "__main__":
    main()
