from torchrl.collectors import Collector
from torchrl.envs.libs.gym import GymEnv

collector = Collector(
    create_env_fn=lambda: GymEnv("HalfCheetah-v4"),
    policy=policy,
    frames_per_batch=1024,
    total_frames=1_000_000,
    device="cpu",
)

for batch in collector:
    train_step(batch)

collector.shutdown()
