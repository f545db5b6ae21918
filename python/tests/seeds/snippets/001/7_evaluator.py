from torchrl.collectors import Collector, Evaluator

evaluator = Evaluator(
    env=lambda: GymEnv("HalfCheetah-v4"),
    policy=policy,
    num_trajectories=5,
    max_steps=1000,
    on_result=lambda result: print(result),
)

collector = Collector(
    create_env_fn=lambda: GymEnv("HalfCheetah-v4"),
    policy=policy,
    frames_per_batch=1024,
    total_frames=1_000_000,
)

for i, batch in enumerate(collector):
    evaluator.trigger_eval(policy, step=i)
