from torchrl.collectors import MultiSyncCollector, VanillaWeightUpdater

collector = MultiSyncCollector(
    create_env_fn=[lambda: GymEnv("HalfCheetah-v4")] * 4,
    policy=policy,
    frames_per_batch=1024,
    total_frames=1_000_000,
    weight_updater=VanillaWeightUpdater(),
)

for batch in collector:
    collector.update_policy_weights_()
