import torch
from torchrl.collectors import Collector
from torchrl.envs import TransformedEnv, GymEnv, ObservationNorm, Compose
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

env = TransformedEnv(
    GymEnv("HalfCheetah-v4"),
    Compose(ObservationNorm(in_keys=["observation"])),
)

collector = Collector(
    create_env_fn=env,
    policy=actor,
    frames_per_batch=2048,
    total_frames=500_000,
)
loss_fn = ClipPPOLoss(actor_network=actor, critic_network=critic)
advantage_fn = GAE(value_network=critic, gamma=0.99, lmbda=0.95)
optimizer = torch.optim.Adam(loss_fn.parameters(), lr=3e-4)

for batch in collector:
    batch = advantage_fn(batch)
    for epoch in range(10):
        mini = batch[torch.randperm(len(batch))[:256]]
        losses = loss_fn(mini)
        total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
        optimizer.zero_grad()
        total.backward()
        optimizer.step()

collector.shutdown()
