from torchrl.collectors import MultiAsyncCollector

collector = MultiAsyncCollector(
    create_env_fn=[lambda: GymEnv("HalfCheetah-v4")] * 8,
    policy=policy,
    frames_per_batch=256,
    total_frames=2_000_000,
    num_workers=8,
)

for batch in collector:
    replay_buffer.extend(batch)
    if len(replay_buffer) > 10_000:
        sample = replay_buffer.sample(256)
        collector.update_policy_weights_()
