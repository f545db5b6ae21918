from torchrl.collectors import Collector
from torchrl.envs import GymEnv

collector = Collector(
    GymEnv("CartPole-v1"),
    policy=my_policy,
    frames_per_batch=200,
    total_frames=10000,
    trajs_per_batch=4,
)
for batch in collector:
    valid = batch[("collector", "mask")]
    loss = compute_loss(batch, valid)
    collector.update_policy_weights_()
