from torchrl.envs import ParallelEnv
from torchrl.envs.libs.gym import GymEnv
from tensordict.nn import TensorDictModule
from torch import nn

env_fn = lambda: GymEnv("Pendulum-v1")
env_fn_parallel = ParallelEnv(6, env_fn)
policy = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
collector = SyncDataCollector(env_fn_parallel, policy, total_frames=300, frames_per_batch=100)
out_seed = collector.set_seed(1)
