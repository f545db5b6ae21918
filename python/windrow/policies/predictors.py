"""Models that act by a method ``predict``, as those of Stable-Baselines3 do:
``predict(observation, state, episode_start, deterministic)`` returns actions and the next state.
And policies of Stable-Baselines3, whose actions its models scale and whose mode they choose.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictModuleBase
from tensordict.nn.probabilistic import interaction_type
from torch import nn

from windrow._keys import Key
from windrow._types import Array
from windrow.policies.arguments import BOOKKEEPING

_PARAMETERS = {"observation", "state", "episode_start", "deterministic"}


def adapted(policy: Any) -> Any:
    """``policy``, or what calls its ``predict``, if it is a model with such a method, or the method
    itself. Where the method only evaluates the model's network, that is a module with the network,
    which windrow can follow; otherwise a :class:`Predictor`. A policy of Stable-Baselines3 is
    called as it is, and acts as its model does.
    """
    if _is_called_alone(policy):
        return _Called(policy)
    predict = (
        policy
        if inspect.ismethod(policy) and policy.__name__ == "predict"
        else getattr(policy, "predict", None)
    )
    if (
        predict is None
        or not inspect.ismethod(predict)
        or (callable(policy) and policy is not predict)
        or not _fits(predict)
    ):
        return policy
    network = _network(predict)
    if network is None:
        return Predictor(predict)
    return (
        _Network(network) if "" in _spaces(network.observation_space) else _OfDictionaries(network)
    )


def _fits(predict: Callable[..., Any]) -> bool:
    try:
        return _PARAMETERS <= inspect.signature(predict).parameters.keys()
    except (TypeError, ValueError):
        return False


def _is_called_alone(policy: Any) -> bool:
    """Whether this is a policy of Stable-Baselines3 that returns the actions for one array when it
    is called.
    """
    policies = sys.modules.get("stable_baselines3.common.policies")
    if (
        policies is None
        or not isinstance(policy, policies.BasePolicy)
        or not hasattr(policy.observation_space, "low")
    ):
        return False
    # Networks of values take no deterministic and squash nothing, and recurrent policies need a
    # state.
    taken = inspect.signature(policy.forward).parameters.values()
    needed = [parameter for parameter in taken if parameter.default is parameter.empty]
    return len(needed) == 1 and (
        policy.squash_output or "deterministic" in {parameter.name for parameter in taken}
    )


def _network(predict: MethodType) -> Any:
    """The policy of Stable-Baselines3 that ``predict`` evaluates, if it does nothing else."""
    algorithms = sys.modules.get("stable_baselines3.common.base_class")
    policies = sys.modules.get("stable_baselines3.common.policies")
    if algorithms is None or policies is None:
        return None
    owner: Any = predict.__self__
    method: Any = predict
    if (
        isinstance(owner, algorithms.BaseAlgorithm)
        and predict.__func__ is algorithms.BaseAlgorithm.predict
    ):
        owner = owner.policy
        method = getattr(owner, "predict", None)
    is_plain = (
        isinstance(owner, policies.BasePolicy)
        and getattr(method, "__func__", None) is policies.BasePolicy.predict
    )
    if not is_plain:
        return None
    spaces, is_image = (
        _spaces(owner.observation_space),
        sys.modules["stable_baselines3.common.preprocessing"].is_image_space,
    )
    # Pictures may have to be turned, and choices be vectors.
    return (
        owner
        if all(hasattr(space, "low") and not is_image(space) for space in spaces.values())
        else None
    )


def _spaces(space: Any) -> dict[str, Any]:
    """The spaces of a dictionary by name; a space alone has no name."""
    spaces = getattr(space, "spaces", None)
    return dict(spaces) if isinstance(spaces, dict) else {"": space}


class _Network(nn.Module):
    """What ``predict`` of ``policy``, one of Stable-Baselines3, computes, from tensors. Its weights
    are those of ``policy``, under their names.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy
        space = policy.action_space
        if hasattr(space, "low"):
            self.low, self.high = (
                torch.as_tensor(bound, device=policy.device) for bound in (space.low, space.high)
            )
        self._shape = tuple(space.shape)
        self._inner = {
            key: len(space.shape) for key, space in _spaces(policy.observation_space).items()
        }

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.policy.state_dict(*args, **kwargs)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.acted({"": observation})

    def acted(self, observed: dict[str, torch.Tensor]) -> torch.Tensor:
        """The actions for observations by name; one observation has no name."""
        batch = next(
            value.shape[: value.dim() - self._inner[key]] for key, value in observed.items()
        )
        flat = {
            key: value.reshape(-1, *value.shape[len(batch) :]).to(self.policy.device)
            for key, value in observed.items()
        }
        if self.policy.training:
            self.policy.set_training_mode(False)
        actions = self.policy._predict(
            flat.get("", flat), deterministic=interaction_type() is not InteractionType.RANDOM
        )
        actions = self._unscaled(actions.reshape((*batch, *self._shape)))
        if self.policy.squash_output or not hasattr(self, "low"):
            return actions
        low, high = self._bounds(actions)
        return torch.maximum(torch.minimum(actions, high), low)

    def _unscaled(self, actions: torch.Tensor) -> torch.Tensor:
        """Actions of a policy that squashes them, in the range of the environment."""
        if not self.policy.squash_output:
            return actions
        low, high = self._bounds(actions)
        return low + (0.5 * (actions + 1.0) * (high - low))

    def _bounds(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of the environment, where ``actions`` are: a policy may be moved to another
        device.
        """
        return self.low.to(actions.device), self.high.to(actions.device)


class _Called(_Network):
    """``policy``, one of Stable-Baselines3, called as its models call it: with the kind of
    exploration, for several observations. What it returns beside actions is returned, too, and
    actions are not clipped: their log-probability is that of what was drawn.
    """

    #: What is beside actions, if there is something: see :func:`windrow.policies.answers.ordered`.
    _order = ("value", "log_prob")

    def __init__(self, policy: Any) -> None:
        super().__init__(policy)
        self._chooses = "deterministic" in inspect.signature(policy.forward).parameters
        self._observed = tuple(policy.observation_space.shape)

    def forward(self, observation: torch.Tensor) -> Any:
        batch = observation.shape[: max(observation.dim() - len(self._observed), 0)]
        if (shape := tuple(observation.shape[len(batch) :])) != self._observed:
            raise ValueError(
                f"the policy observes {list(self._observed)}, the environment {list(shape)}"
            )
        flat = observation.reshape((-1, *self._observed)).to(self.policy.device)
        deterministic = interaction_type() not in (None, InteractionType.RANDOM)
        returned = (
            self.policy(flat, deterministic=deterministic) if self._chooses else self.policy(flat)
        )
        actions, *beside = returned if isinstance(returned, tuple) else (returned,)
        actions = self._unscaled(actions.reshape((*batch, *self._shape)))
        return (
            (actions, *(value.reshape((*batch, *value.shape[1:])) for value in beside))
            if beside
            else actions
        )


class _OfDictionaries(TensorDictModuleBase):
    """A :class:`_Network` that observes several entries by name."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.network = _Network(policy)
        self.in_keys, self.out_keys = list(policy.observation_space.spaces), ["action"]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.network.state_dict(*args, **kwargs)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set(
            "action", self.network.acted({key: tensordict.get(key) for key in self.in_keys})
        )


class Predictor:
    """A policy that calls ``predict`` with NumPy arrays, one thread at a time: models keep what
    they compute with in attributes.
    """

    def __init__(self, predict: Callable[..., Any]) -> None:
        self.predict = predict
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Predictor], tuple[Any, ...]]:
        return Predictor, (self.predict,)

    def __call__(
        self, observation: Any, state: Any, episode_start: Any, deterministic: bool
    ) -> tuple[Any, Any]:
        with self._lock:
            returned = self.predict(
                observation, state=state, episode_start=episode_start, deterministic=deterministic
            )
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError(
                f"expected predict to return actions and a state, got {type(returned).__name__}"
            )
        return returned

    def given(
        self, keys: Sequence[Key], inputs: Sequence[Any], batch: Sequence[int]
    ) -> Array | dict[Key, Array]:
        """What ``predict`` observes of ``inputs``, which begin with dimensions of a batch: one
        array, or a dictionary where the model's space, or the environment, has several.

        Raises:
            TypeError: the environment does not observe what the model does.
        """
        space = getattr(getattr(self.predict, "__self__", None), "observation_space", None)
        observed = {key: value for key, value in zip(keys, inputs) if key not in BOOKKEEPING}
        spaces = getattr(space, "spaces", None)
        if isinstance(spaces, dict):
            missing = sorted(spaces.keys() - observed.keys())
            if missing:
                raise TypeError(
                    f"the model observes {list(spaces)}, the environment {list(observed)}: {missing[0]!r} is missing"
                )
            return {
                key: _indexed(observed[key], inner, len(batch)) for key, inner in spaces.items()
            }
        if len(observed) == 1 or (space is not None and "observation" in observed):
            return _indexed(
                observed.get("observation", next(iter(observed.values()))), space, len(batch)
            )
        if space is not None:
            raise TypeError(
                f"the model observes one array of shape {list(space.shape)}, the environment {list(observed)}"
            )
        return observed


def _indexed(observed: Array, space: Any, batch: int) -> Array:
    """An observation with ``batch`` dimensions of a batch, as ``space`` has it: choices are
    indices, where an environment may observe vectors.
    """
    is_one_hot = hasattr(space, "n") and space.shape == () and observed.ndim == batch + 1
    return observed.argmax(-1) if is_one_hot else observed
