"""Whatever may act: how it is called, and what it writes."""

from __future__ import annotations

import copy
import re
import time
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import (
    InteractionType,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    TensorDictModule,
    TensorDictSequential,
    composite_lp_aggregate,
    set_composite_lp_aggregate,
    set_interaction_type,
    set_skip_existing,
    skip_existing,
)
from tensordict.nn.probabilistic import interaction_type
from torch import nn
from torch.distributions import Categorical
from torchrl.modules import MLP

from cartpole import cartpole, in_threads
from windrow.collectors import (
    AsyncCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiSyncCollector,
    RandomPolicy,
)
from windrow.envs import GymEnv
from windrow.policies.answers import ordered


def collect(policy, env=cartpole, **arguments) -> TensorDict:
    return next(Collector(env, policy, **{"frames_per_batch": 40, "seed": 1, **arguments}))


def categorical(network: nn.Module, **arguments) -> TensorDictSequential:
    return TensorDictSequential(
        TensorDictModule(network, in_keys=["observation"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"], out_keys=["action"], distribution_class=Categorical, **arguments
        ),
    )


def by_td(td):
    return td.set("action", (td["observation"][..., 0] > 0).long())


def by_annotation(whatever):
    return by_td(whatever)


# As without `from __future__ import annotations`.
by_annotation.__annotations__["whatever"] = TensorDictBase


def by_name(observation):
    return (observation[..., 0] > 0).long()


def by_position(x):
    return by_name(x)


class ByMethod:
    def __call__(self, td):
        by_td(td)


@pytest.mark.parametrize(
    "policy",
    [by_td, by_annotation, by_name, by_position, ByMethod(), lambda tensordict: by_td(tensordict)],
)
def test_callables_are_called_as_they_ask(policy) -> None:
    batch = collect(policy)
    assert torch.equal(batch["action"], (batch["observation"][:, 0] > 0).long())


def test_a_callable_with_other_parameters_is_refused() -> None:
    with pytest.raises(TypeError, match="observations of the environment.*trust_policy=True"):
        collect(lambda pixels, state: pixels)
    with pytest.raises(TypeError, match="can be called"):
        collect(3)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.LeakyReLU])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_module_of_any_number_of_inputs_takes_the_only_observation(activation, backend) -> None:
    mlp = MLP(in_features=4, out_features=2, num_cells=[8], activation_class=activation)
    batch = collect(mlp, policy_backend=backend)
    assert torch.equal(batch["action"], mlp(batch["observation"]).argmax(-1))


def test_extra_outputs_become_columns() -> None:
    def policy(observation):
        return (observation[..., 0] > 0).long(), observation * 2, observation.sum(-1, keepdim=True)

    with pytest.warns(UserWarning, match='the policy returns a tuple, .* called "output1"') as told:
        batch = collect(policy)
    assert torch.equal(batch["output1"], 2 * batch["observation"])
    assert batch["output2"].shape == (40, 1)
    assert len(told) == 1


class Agent(nn.Module):
    """As in CleanRL's scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)

    def get_action_and_value(self, x: torch.Tensor, action: Any = None) -> tuple[Any, ...]:
        probs = Categorical(logits=self.actor(x))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


@pytest.mark.parametrize("policy_backend", ["native", "torch"])
def test_outputs_of_cleanrls_method_have_its_names(policy_backend: str) -> None:
    agent = Agent()
    batch = collect(agent.get_action_and_value, policy_backend=policy_backend)
    _, log_prob, entropy, value = agent.get_action_and_value(batch["observation"], batch["action"])
    for name, expected in (("log_prob", log_prob), ("entropy", entropy), ("value", value)):
        assert torch.allclose(batch[name], expected, atol=1e-5)


def test_an_observation_keeps_its_name_where_an_output_would_have_it() -> None:
    assert ordered(Agent().get_action_and_value, ["action"], 4, ["value"]) == [
        "action",
        "output1",
        "output2",
        "output3",
    ]

    def with_td(td):
        by_td(td)
        td.set(("info", "double"), 2 * td["observation"])
        return td.set("_scratch", td["observation"])

    batch = collect(with_td, num_envs=4)
    assert torch.equal(batch["info", "double"], 2 * batch["observation"])
    assert "_scratch" not in batch.keys()


def test_floats_for_choices_mean_the_largest() -> None:
    batch = collect(
        lambda observation: torch.stack([observation[..., 0], -observation[..., 0]], -1) * 1e-3
    )
    assert torch.equal(batch["action"], (batch["observation"][:, 0] < 0).long())


def test_outputs_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r'"action": expected int64 \[\].*got float32 \[3\]'):
        collect(lambda observation: torch.zeros(3))
    with pytest.raises(KeyError, match="writes.*'move'.*'action'"):
        collect(
            TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["move"]),
            policy_backend="torch",
        )


def test_a_policy_may_keep_what_it_saw() -> None:
    seen: list[torch.Tensor] = []

    def policy(observation):
        seen.append(observation)
        return by_name(observation)

    batch = collect(policy)
    assert torch.equal(torch.stack(seen[-40:]), batch["observation"])


def test_gradients_are_off_and_the_type_of_exploration_holds() -> None:
    seen: set[object] = set()

    def policy(td):
        from tensordict.nn.probabilistic import interaction_type

        seen.add((torch.is_grad_enabled(), interaction_type()))
        return by_td(td)

    with set_interaction_type(InteractionType.MEAN):
        collect(policy, exploration_type="MODE")
    assert seen == {(False, InteractionType.MODE)}
    with pytest.warns(DeprecationWarning, match="exploration_type"):
        collect(policy, exploration_mode="mode")


def test_probing_leaves_the_generator_alone(network) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    Collector(cartpole, categorical(network), frames_per_batch=10, policy_backend="torch")
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("kind", [Collector, AsyncCollector])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_the_best_guess_is_that_of_torch(network, kind, backend) -> None:
    policy = categorical(network, return_log_prob=True)
    with kind(
        cartpole,
        policy,
        frames_per_batch=60,
        seed=0,
        exploration_type="MODE",
        policy_backend=backend,
        **in_threads(kind),
    ) as source:
        assert source.policy_backend == backend
        batch = next(source)
    with torch.no_grad():
        logits = network(batch["observation"])
    assert torch.equal(batch["action"], logits.argmax(-1))
    torch.testing.assert_close(batch["logits"], logits, rtol=1e-4, atol=1e-5)
    chosen = Categorical(logits=logits).log_prob(batch["action"])
    torch.testing.assert_close(batch["action_log_prob"], chosen, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("env", [GymEnv("CartPole-v1"), lambda: GymEnv("CartPole-v1")])
def test_lazy_layers_of_the_module_itself_get_their_sizes(env, backend) -> None:
    policy = TensorDictModule(
        MLP(out_features=2, num_cells=[8]), in_keys=["observation"], out_keys=["action"]
    )
    with Collector(
        env, policy, frames_per_batch=20, total_frames=20, seed=0, policy_backend=backend
    ) as collector:
        (batch,) = collector
        assert policy.module[0].weight.shape == (8, 4)
        expected = nn.functional.one_hot(policy.module(batch["observation"]).argmax(-1), 2)
        assert torch.equal(batch["action"], expected)


def test_lazy_layers_are_not_copied() -> None:
    policy = TensorDictModule(MLP(out_features=2), in_keys=["observation"], out_keys=["action"])
    with pytest.raises(TypeError, match=r"policy has lazy layers.*: call it once before"):
        MultiSyncCollector(
            [lambda: GymEnv("CartPole-v1")] * 2, policy, frames_per_batch=20, total_frames=20
        )


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_samples_have_the_distribution_of_the_policy(network, backend) -> None:
    batch = collect(categorical(network), frames_per_batch=2000, policy_backend=backend)
    expected = batch["logits"].softmax(-1)[:, 1].mean()
    assert abs(batch["action"].float().mean() - expected) < 0.05


def normal_actor(kind: type, **arguments) -> TensorDictSequential:
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Linear(3, 32), nn.ELU(), nn.LayerNorm(32), nn.Linear(32, 2), NormalParamExtractor()
    )
    return TensorDictSequential(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        ProbabilisticTensorDictModule(
            in_keys=["loc", "scale"],
            out_keys=["action"],
            distribution_class=kind,
            distribution_kwargs=arguments,
            return_log_prob=True,
        ),
    )


def test_squashed_normal_actors_of_torchrl_are_lowered() -> None:
    from torchrl.modules import TanhNormal

    policy = normal_actor(TanhNormal, low=-2.0, high=2.0)
    batch = collect(policy, "Pendulum-v1", policy_backend="native")
    with torch.no_grad():
        dist = policy.module[1].get_dist(policy.module[0](batch.select("observation")))
    torch.testing.assert_close(batch["scale"], dist.scale, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        batch["action_log_prob"], dist.log_prob(batch["action"]), rtol=1e-3, atol=1e-3
    )


def test_a_distribution_may_have_other_bounds_than_the_environment() -> None:
    from torchrl.modules import TanhNormal

    policy = normal_actor(TanhNormal, low=-1.0, high=1.0)
    source = Collector("Pendulum-v1", policy, frames_per_batch=20, policy_backend="native")
    assert next(source)["action"].abs().max() <= 1


def hooked() -> nn.Module:
    net = nn.Linear(4, 2)
    seen = []
    net.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    return net


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (hooked(), "it writes"),
        (nn.Linear(4, 2).double(), "Double"),
        (lambda observation: observation[..., :2], "expected a module"),
    ],
)
def test_on_any_doubt_the_module_is_called(policy, why) -> None:
    with pytest.raises(ValueError, match=why):
        collect(policy, policy_backend="native")
    if not isinstance(policy, nn.Linear):
        source = Collector(cartpole, policy, frames_per_batch=10)
        assert source.policy_backend == "torch" and re.search(why, repr(source))


def test_known_networks_are_lowered(network) -> None:
    layers = [
        nn.Linear(4, 8),
        nn.LayerNorm(8),
        nn.GELU(),
        nn.Linear(8, 8, bias=False),
        nn.SiLU(),
        nn.Linear(8, 2),
        nn.Sigmoid(),
    ]
    for policy in (
        network,
        TensorDictModule(nn.Sequential(*layers), in_keys=["observation"], out_keys=["action"]),
    ):
        own = collect(policy, policy_backend="native")
        called = collect(policy, policy_backend="torch")
        assert torch.equal(own["action"], called["action"])


def test_a_probabilistic_actor_of_torchrl_learns_with_its_losses() -> None:
    from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    def mlp(outputs: int) -> MLP:
        return MLP(
            in_features=3, out_features=outputs, num_cells=[16, 16], activation_class=nn.Tanh
        )

    network = TensorDictModule(
        nn.Sequential(mlp(2), NormalParamExtractor()),
        in_keys=["observation"],
        out_keys=["loc", "scale"],
    )
    actor = ProbabilisticActor(
        network,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -2.0, "high": 2.0},
        return_log_prob=True,
    )
    critic = ValueOperator(mlp(1), in_keys=["observation"])
    loss_fn = ClipPPOLoss(actor_network=actor, critic_network=critic)
    advantage = GAE(value_network=critic, gamma=0.99, lmbda=0.95)
    optimizer = torch.optim.Adam(loss_fn.parameters(), lr=1e-3)
    collector = Collector(
        "Pendulum-v1",
        actor,
        frames_per_batch=64,
        total_frames=192,
        track_policy_version=True,
        seed=0,
    )
    assert collector.policy_backend == "native"
    versions = []
    for batch in collector:
        versions.append(int(batch["policy_version"][0]))
        losses = loss_fn(advantage(batch)[torch.randperm(64)[:32]])
        (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert torch.isfinite(losses["loss_critic"]).all()
    assert versions == [0, 1, 2]


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_one_hot_actions_are_the_default_of_gym_env(network, backend) -> None:
    policy = TensorDictModule(network, in_keys=["observation"], out_keys=["action"])
    batch = collect(policy, GymEnv("CartPole-v1"), policy_backend=backend)
    with torch.no_grad():
        best = network(batch["observation"]).argmax(-1)
    assert torch.equal(batch["action"], nn.functional.one_hot(best, 2))


def frames_of(collector, batches: int):
    kept = torch.cat([next(collector).clone() for _ in range(batches)], -1)
    return kept.exclude(("collector", "traj_ids"))


@pytest.mark.parametrize(
    "env",
    [
        cartpole,
        lambda: GymEnv("CartPole-v1", categorical_action_encoding=True, backend="gymnasium"),
    ],
    ids=["native", "gymnasium"],
)
@pytest.mark.parametrize("threads", [False, True], ids=["inline", "threads"])
@pytest.mark.parametrize("policy", ["random", "native", "torch"])
def test_a_seed_is_followed_by_the_same_frames_whenever_it_is_given(
    env, threads: bool, policy: str
) -> None:
    make = MultiSyncCollector if threads else Collector
    # Of several threads nobody knows which draws first from the one generator that torch has.
    workers = [env] * (1 if policy == "torch" else 2) if threads else env
    torch.manual_seed(0)
    acts = None if policy == "random" else categorical(nn.Linear(4, 2), return_log_prob=True)
    arguments = {} if policy == "random" else {"policy_backend": policy}
    with make(workers, acts, frames_per_batch=30, seed=3, **arguments) as collector:
        runs = []
        for before in (0, 3, 1):
            for _ in range(before):
                next(collector)
            collector.set_seed(7)
            torch.manual_seed(7)
            runs.append(frames_of(collector, 3))
        for run in runs[1:]:
            assert (run == runs[0]).all()
        collector.set_seed(8)
        torch.manual_seed(8)
        assert not torch.equal(frames_of(collector, 3)["observation"], runs[0]["observation"])


class Exploring(nn.Module):
    """Acts 1 where it is told to explore, 0 otherwise."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        explores = interaction_type() in (None, InteractionType.RANDOM)
        return torch.full(observation.shape[:-1], int(explores))


@pytest.mark.parametrize(
    "kind", [Collector, AsyncCollector, MultiSyncCollector, MultiAsyncCollector]
)
def test_the_type_of_exploration_of_the_learner_is_not_that_of_workers(kind) -> None:
    workers = in_threads(kind) | ({"num_workers": 2} if "Multi" in kind.__name__ else {})
    with kind(cartpole, Exploring(), frames_per_batch=20, total_frames=200, **workers) as collector:
        with set_interaction_type(InteractionType.DETERMINISTIC):
            for batch in collector:
                assert bool((batch["action"] == 1).all())
                assert interaction_type() is InteractionType.DETERMINISTIC
    assert interaction_type() is None


class Moded(nn.Module):
    """Tells by its action which modes hold, and changes them for a while itself."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        action = int(bool(composite_lp_aggregate(nowarn=True)) or skip_existing())
        with set_composite_lp_aggregate(True), set_skip_existing(True):
            time.sleep(0.001)
        return torch.full(observation.shape[:-1], action)


@pytest.mark.parametrize("kind", [AsyncCollector, MultiSyncCollector, MultiAsyncCollector])
def test_what_losses_set_for_themselves_is_not_seen_by_workers_nor_the_other_way_round(
    kind,
) -> None:
    workers = in_threads(kind) | ({"num_workers": 2} if "Multi" in kind.__name__ else {})
    with kind(cartpole, Moded(), frames_per_batch=20, total_frames=200, **workers) as collector:
        with set_composite_lp_aggregate(True), set_skip_existing(True):
            for batch in collector:
                assert not bool(batch["action"].any())
                assert composite_lp_aggregate(nowarn=True) and skip_existing()
    assert not composite_lp_aggregate(nowarn=True) and not skip_existing()


def test_workers_aggregate_as_it_was_when_the_collector_was_built() -> None:
    with set_composite_lp_aggregate(True):
        collector = AsyncCollector(
            cartpole, Moded(), placement="threads", frames_per_batch=20, total_frames=60
        )
    with collector:
        assert all(bool(batch["action"].all()) for batch in collector)


def test_an_evaluator_and_a_collector_act_as_each_was_told() -> None:
    collector = Collector(cartpole, Exploring(), frames_per_batch=50)
    with Evaluator(
        cartpole,
        Exploring(),
        num_trajectories=20,
        metrics_fn=lambda all: {"one": all["action"].sum()},
    ) as evaluator:
        evaluator.trigger_eval()
        while (result := evaluator.poll()) is None:
            assert bool((next(collector)["action"] == 1).all())
            assert interaction_type() is None
    assert result["eval/one"] == 0
    assert interaction_type() is None


@pytest.mark.parametrize("kind", [Collector, MultiSyncCollector])
@pytest.mark.parametrize("options", [True, {"warmup": 1, "backend": "eager"}])
def test_compiled_policies_act_and_take_weights_up(network, kind, options) -> None:
    policy = TensorDictModule(network, in_keys=["observation"], out_keys=["action"])
    options = {"backend": "eager"} if options is True else options
    workers = {} if kind is Collector else {"num_workers": 2, "placement": "threads"}
    with kind(
        cartpole, policy, compile_policy=options, frames_per_batch=20, seed=0, **workers
    ) as collector:
        assert collector.policy_backend == "torch"
        other = copy.deepcopy(policy)
        for parameter in other.parameters():
            nn.init.normal_(parameter)
        for weights in (
            other,
            TensorDict.from_module(other),
            other.state_dict(),
            torch.compile(other),
        ):
            collector.update_policy_weights_(weights)
            batch = next(collector)
            with torch.no_grad():
                assert torch.equal(batch["action"], other.module(batch["observation"]).argmax(-1))


def test_random_policies_draw_from_the_space_that_they_were_given() -> None:
    from torchrl.data import Bounded

    env = GymEnv("Pendulum-v1")
    narrow = collect(RandomPolicy(Bounded(0.5, 0.6, (1,))), env)["action"]
    assert bool((narrow >= 0.5).all() and (narrow <= 0.6).all())
    whole = Collector(env, RandomPolicy(env.action_spec), frames_per_batch=10)
    assert whole.policy_backend == "native"
    assert (
        Collector(
            cartpole, RandomPolicy(cartpole().action_spec), frames_per_batch=10
        ).policy_backend
        == "native"
    )


@pytest.mark.parametrize("kind", ["action_spec", "full_action_spec", "full_action_spec_unbatched"])
@pytest.mark.parametrize("number", [None, 1, 3])
@pytest.mark.parametrize("id", ["Pendulum-v1", "CartPole-v1"])
def test_random_policies_write_what_any_spec_of_an_environment_names(
    kind: str, number: int | None, id: str
) -> None:
    from torchrl.modules import RandomPolicy as TheirRandomPolicy

    env = GymEnv(id, num_envs=number)
    if kind == "action_spec" and number:
        pytest.skip(
            "a spec alone does not say which dimensions are those of environments: give the one without"
        )
    policy = RandomPolicy(getattr(env, kind))
    root = policy(env.reset())
    assert [key for key in root.keys(True, True) if "action" in str(key)] == ["action"]
    assert env.full_action_spec.is_in(root.select("action")) and env.step(root)[
        "next", "reward"
    ].shape == (*env.batch_size, 1)
    if kind != "full_action_spec_unbatched":
        for each in (policy, TheirRandomPolicy(getattr(env, kind))):
            with Collector(
                GymEnv(id, num_envs=number), each, frames_per_batch=12, total_frames=12
            ) as collector:
                assert (
                    next(collector)["action"].shape[-1] == env.full_action_spec["action"].shape[-1]
                )


def test_random_policies_write_the_actions_of_groups() -> None:
    from torchrl.data import Bounded, Composite

    spec = Composite(agents=Composite(action=Bounded(-1, 1, (3, 2, 1)), shape=(3, 2)), shape=(3,))
    root = RandomPolicy(spec)(TensorDict({}, [5, 3]))
    assert root["agents", "action"].shape == (5, 3, 2, 1) and list(root.keys(True, True)) == [
        ("agents", "action")
    ]
    with pytest.raises(
        ValueError, match=r"action_spec is of \[3\] environments was given a TensorDict of \[4\]"
    ):
        RandomPolicy(spec)(TensorDict({}, [4]))


def test_every_exploration_type_is_evaluated_as_torch_does() -> None:
    from torchrl.modules import ProbabilisticActor, TanhNormal

    net = nn.Sequential(nn.Linear(3, 2), NormalParamExtractor())
    nn.init.zeros_(net[0].weight)
    actor = ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -2.0, "high": 2.0},
    )
    # A thousand samples for each mean.
    for name, spread in {"random": 0.5, "deterministic": 1e-6, "mean": 0.1}.items():
        batch = next(
            Collector(
                "Pendulum-v1",
                actor,
                frames_per_batch=60,
                seed=0,
                exploration_type=name,
                policy_backend="native",
            )
        )
        assert (
            (batch["action"].std() > 0.5) if name == "random" else (batch["action"].std() < spread)
        )


def test_policies_are_tried_on_what_the_environment_observes_first() -> None:
    from torchrl.data import Binary, Bounded, Composite, OneHot
    from torchrl.envs import EnvBase
    from torchrl.modules import MaskedOneHotCategorical, ProbabilisticActor

    class Masked(EnvBase):
        """The first of three actions is never allowed."""

        def __init__(self) -> None:
            super().__init__()
            self.observation_spec = Composite(
                observation=Bounded(-1.0, 1.0, (4,)), action_mask=Binary(3, dtype=torch.bool)
            )
            self.action_spec = OneHot(3)
            self.reward_spec = Bounded(-1.0, 1.0, (1,))

        def _seen(self) -> dict:
            return {"observation": torch.rand(4), "action_mask": torch.tensor([False, True, True])}

        def _reset(self, tensordict=None):
            return TensorDict(self._seen(), [])

        def _step(self, tensordict):
            return TensorDict(
                {
                    **self._seen(),
                    "reward": torch.zeros(1),
                    "done": torch.zeros(1, dtype=torch.bool),
                },
                [],
            )

        def _set_seed(self, seed) -> None:
            torch.manual_seed(0)

    actor = ProbabilisticActor(
        TensorDictModule(nn.Linear(4, 3), ["observation"], ["logits"]),
        in_keys={"logits": "logits", "mask": "action_mask"},
        distribution_class=MaskedOneHotCategorical,
    )
    batch = collect(actor, Masked())
    assert not batch["action"][:, 0].any()
    assert bool(batch["action"].any(-1).all())
