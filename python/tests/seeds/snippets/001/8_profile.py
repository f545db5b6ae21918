from torchrl.collectors import MultiSyncCollector

collector = MultiSyncCollector(
    create_env_fn=[lambda: GymEnv("HalfCheetah-v4")] * 4,
    policy=policy,
    frames_per_batch=1024,
    total_frames=100_000,
)

collector.enable_profile(
    workers=[0, 1],
    num_rollouts=5,
    warmup_rollouts=2,
    save_path="./traces/worker_{worker_idx}.json",
)
