from torchrl.collectors import MultiCollector
from torchrl.envs import GymEnv


def make_env():
    return GymEnv("CartPole-v1")


sync_collector = MultiCollector(
    create_env_fn=[make_env] * 4,
    policy=my_policy,
    frames_per_batch=1000,
    total_frames=100000,
    sync=True,
)

async_collector = MultiCollector(
    create_env_fn=[make_env] * 4,
    policy=my_policy,
    frames_per_batch=1000,
    total_frames=100000,
    sync=False,
)

for data in sync_collector:
    pass

sync_collector.shutdown()
