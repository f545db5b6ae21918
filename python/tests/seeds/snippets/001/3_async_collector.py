from torchrl.collectors import AsyncCollector

collector = AsyncCollector(
    create_env_fn=lambda: GymEnv("HalfCheetah-v4"),
    policy=policy,
    frames_per_batch=1024,
    total_frames=1_000_000,
)
