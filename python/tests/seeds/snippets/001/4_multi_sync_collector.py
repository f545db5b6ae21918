from torchrl.collectors import MultiSyncCollector

collector = MultiSyncCollector(
    create_env_fn=[lambda: GymEnv("HalfCheetah-v4")] * 8,
    policy=policy,
    frames_per_batch=2048,
    total_frames=2_000_000,
    num_workers=8,
)

for batch in collector:
    losses = loss_fn(advantage_fn(batch))
    optimizer.step()
    collector.update_policy_weights_()
