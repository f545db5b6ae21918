"""Policies as scripts write them, by name: those of TorchRL's scripts, and in the shape of
CleanRL's and Stable Baselines'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict.nn import (
    AddStateIndependentNormalScale,
    InteractionType,
    NormalParamExtractor,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torch.distributions import Categorical, Normal
from torchrl.data import Bounded, Categorical as CategoricalSpec, OneHot
from torchrl.modules import (
    MLP,
    ActorCriticWrapper,
    ActorValueOperator,
    AdditiveGaussianModule,
    ConvNet,
    EGreedyModule,
    GRUModule,
    IndependentNormal,
    LSTMModule,
    MaskedCategorical,
    OneHotCategorical,
    OrnsteinUhlenbeckProcessModule,
    ProbabilisticActor,
    QValueActor,
    TanhDelta,
    TanhModule,
    TanhNormal,
    TruncatedNormal,
    ValueOperator,
)

from windrow.envs import GymEnv, GymWrapper, SerialEnv

#: Each policy with its environment: "cartpole", "pendulum" or "goal". Called ones with why.
POLICIES: dict[str, tuple[Callable[[], Any], str, str | None]] = {}


class Goal(gymnasium.Env):
    """Two observations and a mask: a position, a goal, and which of three moves are allowed."""

    observation_space = gymnasium.spaces.Dict(
        {
            "position": gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32),
            "goal": gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32),
            "kind": gymnasium.spaces.Discrete(3),
            "legal": gymnasium.spaces.MultiBinary(3),
        }
    )
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.steps = 0
        return self._seen(), {}

    def _seen(self) -> Any:
        legal = np.ones(3, np.int8)
        legal[self.steps % 3] = 0
        return {
            "position": self.at.copy(),
            "goal": self.goal,
            "kind": self.steps % 3,
            "legal": legal,
        }

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.at += 0.1 * (np.int64(action) - 1)
        return self._seen(), 0.0, False, self.steps == 15, {}


def environment(name: str) -> Any:
    """Two environments in lockstep."""
    if name == "goal":
        return SerialEnv(2, lambda: GymWrapper(Goal(), categorical_action_encoding=True))
    if name == "cartpole_one_hot":
        return GymEnv("CartPole-v1", num_envs=2)
    return GymEnv(
        {"cartpole": "CartPole-v1", "pendulum": "Pendulum-v1"}[name],
        categorical_action_encoding=True,
        num_envs=2,
    )


def policy(env: str, why: str | None = None) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def add(make: Callable[[], Any]) -> Callable[[], Any]:
        POLICIES[make.__name__] = make, env, why
        return make

    return add


BOUNDS = {"low": -2.0 * torch.ones(1), "high": 2.0 * torch.ones(1)}
TORQUE = Bounded(-2.0, 2.0, (1,))


def mlp(inputs: int, outputs: int, activation: type = nn.Tanh) -> MLP:
    return MLP(
        in_features=inputs, out_features=outputs, num_cells=[16, 16], activation_class=activation
    )


def discrete(distribution: Any, net: nn.Module | None = None) -> Any:
    module = TensorDictModule(net or mlp(4, 2), ["observation"], ["logits"])
    return ProbabilisticActor(
        module, in_keys=["logits"], distribution_class=distribution, return_log_prob=True
    )


def normal(distribution: Any, last: nn.Module, outputs: int, **kwargs: Any) -> Any:
    module = TensorDictModule(
        nn.Sequential(mlp(3, outputs), last), ["observation"], ["loc", "scale"]
    )
    return ProbabilisticActor(
        module,
        in_keys=["loc", "scale"],
        spec=TORQUE,
        distribution_class=distribution,
        distribution_kwargs=kwargs,
        return_log_prob=True,
        default_interaction_type=InteractionType.RANDOM,
    )


@policy("cartpole")
def plain_network() -> Any:
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 2))


@policy("cartpole")
def ppo_cartpole() -> Any:
    return discrete(Categorical)


@policy("pendulum")
def ppo_mujoco() -> Any:
    return normal(
        TanhNormal, AddStateIndependentNormalScale(1, scale_lb=1e-8), 1, **BOUNDS, tanh_loc=False
    )


@policy("pendulum")
def a2c_mujoco() -> Any:
    return normal(IndependentNormal, AddStateIndependentNormalScale(1, scale_lb=1e-8), 1)


@policy("pendulum")
def sac() -> Any:
    return normal(
        TanhNormal,
        NormalParamExtractor(scale_mapping="biased_softplus_1.0", scale_lb=0.1),
        2,
        **BOUNDS,
    )


@policy("pendulum")
def cql() -> Any:
    return normal(TanhNormal, NormalParamExtractor(scale_mapping="exp"), 2, **BOUNDS, tanh_loc=True)


@policy("pendulum")
def iql() -> Any:
    return normal(TruncatedNormal, NormalParamExtractor(), 2, **BOUNDS)


@policy("cartpole_one_hot")
def discrete_sac() -> Any:
    return discrete(OneHotCategorical)


def ddpg_actor() -> list[Any]:
    net = TensorDictModule(mlp(3, 1, nn.ReLU), ["observation"], ["param"])
    return [net, TanhModule(in_keys=["param"], out_keys=["action"], spec=TORQUE)]


@policy("pendulum")
def td3() -> Any:
    return TensorDictSequential(*ddpg_actor())


@policy("pendulum")
def td3_additive_gaussian() -> Any:
    noise = AdditiveGaussianModule(TORQUE, sigma_init=1.0, sigma_end=1.0, mean=0.0, std=0.1)
    return TensorDictSequential(*ddpg_actor(), noise)


@policy("pendulum")
def ddpg_ornstein_uhlenbeck() -> Any:
    return TensorDictSequential(
        *ddpg_actor(), OrnsteinUhlenbeckProcessModule(TORQUE.clone(), annealing_num_steps=100)
    )


@policy("pendulum")
def tanh_delta() -> Any:
    net = TensorDictModule(mlp(3, 1), ["observation"], ["param"])
    return ProbabilisticActor(
        net,
        in_keys=["param"],
        spec=TORQUE,
        distribution_class=TanhDelta,
        distribution_kwargs=BOUNDS,
    )


@policy("cartpole")
def dqn() -> Any:
    return QValueActor(mlp(4, 2, nn.ReLU), in_keys=["observation"], spec=CategoricalSpec(2))


@policy("cartpole")
def dqn_egreedy() -> Any:
    return TensorDictSequential(
        dqn(), EGreedyModule(CategoricalSpec(2), eps_init=0.5, annealing_num_steps=100)
    )


@policy("cartpole_one_hot")
def dqn_egreedy_one_hot() -> Any:
    q = QValueActor(mlp(4, 2, nn.ReLU), in_keys=["observation"], spec=OneHot(2))
    return TensorDictSequential(q, EGreedyModule(OneHot(2)))


@policy("cartpole")
def actor_critic_wrapper() -> Any:
    return ActorCriticWrapper(
        discrete(Categorical), ValueOperator(mlp(4, 1), in_keys=["observation"])
    )


@policy("cartpole")
def actor_value_operator() -> Any:
    common = TensorDictModule(nn.Linear(4, 16), ["observation"], ["hidden"])
    head = TensorDictModule(nn.Linear(16, 2), ["hidden"], ["logits"])
    actor = ProbabilisticActor(head, in_keys=["logits"], distribution_class=Categorical)
    return ActorValueOperator(common, actor, ValueOperator(nn.Linear(16, 1), in_keys=["hidden"]))


def recurrent(kind: type) -> Any:
    embed = TensorDictModule(nn.Linear(4, 8), ["observation"], ["embed"])
    cell = kind(8, 6, num_layers=2, in_key="embed", out_key="features")
    return TensorDictSequential(embed, cell, *discrete_head())


def discrete_head() -> Any:
    head = TensorDictModule(nn.Linear(6, 2), ["features"], ["logits"])
    return list(ProbabilisticActor(head, in_keys=["logits"], distribution_class=Categorical).module)


@policy("cartpole")
def lstm() -> Any:
    return recurrent(LSTMModule)


@policy("cartpole")
def gru() -> Any:
    return recurrent(GRUModule)


class DiscreteAgent(nn.Module):
    """In the shape of CleanRL's ppo.py."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        self.actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

    def get_action_and_value(self, x: torch.Tensor, action: torch.Tensor | None = None) -> Any:
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


class ContinuousAgent(nn.Module):
    """In the shape of CleanRL's ppo_continuous_action.py."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
        self.mean = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
        self.logstd = nn.Parameter(torch.zeros(1, 1))

    def get_action_and_value(self, x: torch.Tensor, action: torch.Tensor | None = None) -> Any:
        mean = self.mean(x)
        probs = Normal(mean, torch.exp(self.logstd.expand_as(mean)))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action).sum(-1), probs.entropy().sum(-1), self.critic(x)


@policy("cartpole")
def cleanrl_discrete() -> Any:
    return DiscreteAgent().get_action_and_value


@policy("pendulum")
def cleanrl_continuous() -> Any:
    return ContinuousAgent().get_action_and_value


class Extractor(nn.Module):
    """In the shape of Stable Baselines' MlpExtractor."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.policy_net = nn.Sequential(nn.Linear(inputs, 16), nn.Tanh())
        self.value_net = nn.Sequential(nn.Linear(inputs, 16), nn.Tanh())

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.policy_net(features), self.value_net(features)


class MlpPolicy(nn.Module):
    """In the shape of Stable Baselines' ActorCriticPolicy."""

    def __init__(self) -> None:
        super().__init__()
        self.features_extractor = nn.Flatten()
        self.mlp_extractor = Extractor(4)
        self.action_net, self.value_net = nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(
        self, obs: torch.Tensor, deterministic: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        latent_pi, latent_vf = self.mlp_extractor(self.features_extractor(obs))
        distribution = Categorical(logits=self.action_net(latent_pi))
        actions = (
            torch.argmax(distribution.probs, dim=1) if deterministic else distribution.sample()
        )
        return actions.reshape((-1,)), self.value_net(latent_vf), distribution.log_prob(actions)


class SacActor(nn.Module):
    """In the shape of the actor of Stable Baselines' SAC."""

    def __init__(self) -> None:
        super().__init__()
        self.latent_pi = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.mu, self.log_std = nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, obs: torch.Tensor, deterministic: bool = False) -> torch.Tensor:
        latent = self.latent_pi(obs)
        mean, log_std = self.mu(latent), torch.clamp(self.log_std(latent), -20, 2)
        noise = torch.zeros_like(mean) if deterministic else torch.randn_like(mean)
        return 2 * torch.tanh(mean + noise * log_std.exp())


@policy("cartpole")
def sb3_mlp_policy() -> Any:
    return MlpPolicy()


@policy("pendulum")
def sb3_sac_actor() -> Any:
    return SacActor()


class Own(nn.Module):
    """A forward of its own: residual blocks, slices and constants."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(2, 8), nn.Linear(2, 8), nn.Linear(8, 2)
        self.gain = nn.Parameter(torch.ones(8))
        self.register_buffer("shift", torch.linspace(-1, 1, 4))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        left, right = torch.chunk(observation - self.shift, 2, dim=-1)
        hidden = (
            torch.cat([self.first(left).relu(), torch.sigmoid(self.second(right))], -1)
            .unflatten(-1, (2, 8))
            .mean(-2)
        )
        hidden = hidden + self.gain * torch.where(hidden > 0.1, hidden, hidden.exp() - 1).clamp(
            max=3.0
        )
        return self.last(hidden / (1 + hidden.abs().sum(-1, keepdim=True)))


@policy("cartpole")
def own_forward() -> Any:
    return Own()


@policy("cartpole")
def torch_compiled() -> Any:
    return torch.compile(Own(), backend="eager")


@policy("cartpole")
def spectral_norm() -> Any:
    return nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 2)
    ).eval()


@policy("cartpole")
def weight_norm() -> Any:
    return nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 2)
    )


@policy("cartpole")
def activations() -> Any:
    names = (
        "CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish PReLU ReLU ReLU6 SELU SiLU Sigmoid Softplus "
        "Softshrink Softsign Tanh Tanhshrink Identity Flatten"
    )
    layers = [layer for name in names.split() for layer in (nn.Linear(4, 4), getattr(nn, name)())]
    threshold, softmax = nn.Threshold(0.1, -0.2), nn.LogSoftmax(dim=-1)
    return nn.Sequential(
        *layers,
        nn.GELU(approximate="tanh"),
        threshold,
        nn.Softmax(dim=-1),
        nn.Linear(4, 2),
        softmax,
    )


@policy("cartpole")
def batch_norm_and_dropout_in_eval_mode() -> Any:
    net = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.LeakyReLU(), nn.Dropout(0.3), nn.Linear(8, 2)
    )
    with torch.no_grad():
        net[1].running_mean.normal_()
        net[1].running_var.uniform_(0.5, 2.0)
    return net.eval()


class Joined(nn.Module):
    """Reads two observations by their names, and an index."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.net = nn.Embedding(3, 4), mlp(8, 3)

    def forward(
        self, position: torch.Tensor, goal: torch.Tensor, kind: torch.Tensor
    ) -> torch.Tensor:
        kinds = kind if kind.dtype == torch.int64 and kind.shape[-1:] != (3,) else kind.argmax(-1)
        return self.net(torch.cat([position, goal, self.kinds(kinds)], -1))


@policy("goal")
def several_observations() -> Any:
    return Joined()


@policy("goal")
def masked_categorical() -> Any:
    logits = TensorDictModule(mlp(2, 3), ["position"], ["logits"])
    mask = TensorDictModule(lambda legal: legal.bool(), ["legal"], ["mask"])
    drawn = ProbabilisticActor(
        logits,
        in_keys={"logits": "logits", "mask": "mask"},
        distribution_class=MaskedCategorical,
        return_log_prob=True,
    )
    return TensorDictSequential(mask, drawn)


class Attentive(nn.Module):
    """Each observed number is a token."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed, self.last = nn.Linear(1, 8), nn.Linear(32, 2)
        self.place = nn.Parameter(torch.randn(4, 8))
        if kind == "attention":
            self.layer: nn.Module = nn.MultiheadAttention(8, 2, batch_first=True)
        else:
            self.layer = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=kind == "first"),
                2,
            )
            self.eval()

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(observation.unsqueeze(-1)) + self.place
        if isinstance(self.layer, nn.MultiheadAttention):
            tokens = self.layer(tokens, tokens, tokens)[0]
        else:
            tokens = self.layer(tokens)
        return self.last(tokens.flatten(-2))


@policy("cartpole")
def multihead_attention() -> Any:
    return Attentive("attention")


@policy("cartpole")
def transformer_encoder() -> Any:
    return Attentive("encoder")


@policy("cartpole")
def transformer_that_normalises_first() -> Any:
    return Attentive("first")


class Products(nn.Module):
    """Products of what differs by row: a gated layer, scaled dot products and ``einsum``."""

    def __init__(self) -> None:
        super().__init__()
        self.gated, self.keys, self.last = (
            nn.Sequential(nn.Linear(4, 24), nn.GLU()),
            nn.Linear(4, 12),
            nn.Linear(6, 2),
        )

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        query, keys = (
            self.gated(observation).view(-1, 2, 1, 6),
            self.keys(observation).view(-1, 1, 2, 6).expand(-1, 2, -1, -1),
        )
        attended = nn.functional.scaled_dot_product_attention(query, keys, keys.tanh()).squeeze(-2)
        weights = torch.einsum("bhi,bhi->bh", attended, query.squeeze(-2)).softmax(-1)
        return self.last(
            torch.einsum("bh,bhi->bi", weights, attended) / (1 + weights.amax(-1, keepdim=True))
        )


@policy("cartpole")
def products_of_rows() -> Any:
    return Products()


@policy("cartpole")
def cleanrl_method_in_a_module() -> Any:
    return TensorDictModule(
        DiscreteAgent().get_action_and_value,
        ["observation"],
        ["action", "log_prob", "entropy", "value"],
    )


class BetaAgent(nn.Module):
    """A Beta distribution, stretched over the bounds of the action."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2), nn.Softplus())

    def forward(self, observation: torch.Tensor) -> Any:
        one, other = (self.net(observation) + 1).chunk(2, -1)
        beta = torch.distributions.Beta(one, other)
        drawn = beta.sample()
        return 4 * drawn - 2, beta.log_prob(drawn).sum(-1), beta.entropy().sum(-1)


@policy("pendulum", "_sample_dirichlet")
def cleanrl_beta() -> Any:
    return BetaAgent()


@policy("cartpole")
def dropout_in_training_mode() -> Any:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2))


class Deciding(nn.Module):
    """Does something else where a number is large."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.net(observation if observation.sum() > 100 else -observation)


@policy("cartpole", "Data-dependent")
def a_decision_by_numbers() -> Any:
    return Deciding()


@policy("cartpole", "is convolution")
def convolutions() -> Any:
    net = ConvNet(in_features=1, num_cells=[2], kernel_sizes=2, strides=1)
    return nn.Sequential(nn.Unflatten(-1, (1, 2, 2)), net, nn.Linear(2, 2))
