"""What environments say of themselves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from windrow._windrow import EnvHandle
from windrow.envs import _specs

if TYPE_CHECKING:
    from tensordict import TensorDictBase

Key = str | tuple[str, ...]

FLAGS = ("done", "terminated", "truncated")


def short(path: tuple[str, ...]) -> Key:
    """A path as tensordict spells it."""
    return path[0] if len(path) == 1 else path


class Described:
    """Shapes, names and specs of an environment. Where a name ends in ``_unbatched``, without dimensions for the
    environments.
    """

    _device: Any

    def _known(self) -> Facts:
        raise NotImplementedError

    @property
    def device(self) -> Any:
        """Where tensors are put, a ``torch.device`` or None."""
        import torch

        return None if self._device is None else torch.device(self._device)

    @property
    def batch_size(self) -> Any:
        """``[]`` for one environment, ``[n]`` for several in lockstep."""
        import torch

        return torch.Size(self._known().batch)

    shape = batch_size

    @property
    def batch_dims(self) -> int:
        """Number of dimensions for the environments."""
        return len(self._known().batch)

    ndim = batch_dims

    def ndimension(self) -> int:
        """The same as :attr:`ndim`."""
        return self.ndim

    def numel(self) -> int:
        """Number of environments."""
        return math.prod(self._known().batch)

    @property
    def num_envs(self) -> int:
        """Environments in lockstep."""
        return self._known().num_envs

    @property
    def batch_locked(self) -> bool:
        """The batch size does not change."""
        return True

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which the environment truncates an episode by itself, if it does."""
        return self._known().max_episode_steps

    # Specs

    @property
    def observation_spec(self) -> Any:
        """Names and specs of the observations."""
        return _specs.give(self._observation())

    full_observation_spec = observation_spec

    @property
    def observation_spec_unbatched(self) -> Any:
        """Names and specs of the observations of one environment."""
        return _specs.give(self._observation(()))

    full_observation_spec_unbatched = observation_spec_unbatched

    @property
    def full_action_spec(self) -> Any:
        """Names and specs of the actions."""
        return _specs.give(self._action())

    @property
    def action_spec(self) -> Any:
        """The action's spec; a composite where there are several."""
        return _specs.give(_only_one(self._action()))

    @property
    def full_action_spec_unbatched(self) -> Any:
        """Names and specs of the actions of one environment."""
        return _specs.give(self._action(()))

    @property
    def action_spec_unbatched(self) -> Any:
        """The spec of one environment's action; a composite where there are several."""
        return _specs.give(_only_one(self._action(())))

    @property
    def full_reward_spec(self) -> Any:
        """Specs of the rewards under their names: that of the step, and others if the environment has some."""
        return _specs.give(self._reward())

    @property
    def reward_spec(self) -> Any:
        """The reward's spec, ``[*batch, 1]``; a composite where there are several."""
        return _specs.give(_only_one(self._reward()))

    @property
    def full_reward_spec_unbatched(self) -> Any:
        """Specs of the rewards of one environment."""
        return _specs.give(self._reward(()))

    @property
    def reward_spec_unbatched(self) -> Any:
        """The spec of one environment's reward, ``[1]``; a composite where there are several."""
        return _specs.give(_only_one(self._reward(())))

    @property
    def done_spec(self) -> Any:
        """Specs of ``done``, ``terminated`` and ``truncated``, ``[*batch, 1]``."""
        return _specs.give(self._done())

    full_done_spec = done_spec

    @property
    def done_spec_unbatched(self) -> Any:
        """Specs of the flags of one environment, ``[1]``."""
        return _specs.give(self._done(()))

    full_done_spec_unbatched = done_spec_unbatched

    @property
    def state_spec(self) -> Any:
        """What is read beside actions: nothing."""
        return _specs.give(self._named([]))

    full_state_spec = state_spec

    @property
    def state_spec_unbatched(self) -> Any:
        """What one environment reads beside actions: nothing."""
        return _specs.give(self._named([], ()))

    full_state_spec_unbatched = state_spec_unbatched

    @property
    def input_spec(self) -> Any:
        """``full_state_spec`` and ``full_action_spec``."""
        return _specs.give(self._input())

    @property
    def output_spec(self) -> Any:
        """``full_reward_spec``, ``full_done_spec`` and ``full_observation_spec``."""
        return _specs.give(self._output())

    @property
    def specs(self) -> Any:
        """``output_spec`` and ``input_spec``."""
        both = {"output_spec": self._output(), "input_spec": self._input()}
        return _specs.give(_specs.Composite(both, self._known().batch, self._device))

    def _input(self) -> _specs.Composite:
        entries = {"full_state_spec": self._named([]), "full_action_spec": self._action()}
        return _specs.Composite(entries, self._known().batch, self._device)

    def _output(self) -> _specs.Composite:
        entries = {
            "full_reward_spec": self._reward(),
            "full_done_spec": self._done(),
            "full_observation_spec": self._observation(),
        }
        return _specs.Composite(entries, self._known().batch, self._device)

    def _observation(self, batch: tuple[int, ...] | None = None) -> _specs.Composite:
        facts = self._known()
        return self._named([leaf for leaf in facts.observation if leaf[0] not in facts.rewards], batch)

    def _action(self, batch: tuple[int, ...] | None = None) -> _specs.Composite:
        return self._named(self._known().action, batch)

    def _reward(self, batch: tuple[int, ...] | None = None) -> _specs.Composite:
        facts = self._known()
        reward = (("reward",), ("unbounded", "float32", (1,)))
        return self._named([reward, *(leaf for leaf in facts.observation if leaf[0] in facts.rewards)], batch)

    def _done(self, batch: tuple[int, ...] | None = None) -> _specs.Composite:
        batch = self._known().batch if batch is None else batch
        flags = {name: _specs.Categorical(2, (*batch, 1), "bool", self._device) for name in FLAGS}
        return _specs.Composite(flags, batch, self._device)

    def _named(
        self, leaves: list[tuple[tuple[str, ...], _specs.Description]], own: tuple[int, ...] | None = None
    ) -> _specs.Composite:
        batch, groups = self._known().batch if own is None else own, self._known().groups
        root: dict[str, Any] = {}
        for path, leaf in leaves:
            level = root
            for name in path[:-1]:
                level = level.setdefault(name, {})
            level[path[-1]] = _specs.of(leaf, batch, self._device)

        def composite(level: dict[str, Any], path: tuple[str, ...] = ()) -> _specs.Composite:
            below = {name: (*path, name) for name in level}
            entries = {n: composite(entry, below[n]) if isinstance(entry, dict) else entry for n, entry in level.items()}
            return _specs.Composite(entries, (*batch, *groups.get(path, ())), self._device)

        return composite(root)

    # Names

    @property
    def observation_keys(self) -> list[Key]:
        """Names of the observations."""
        return [key for key, _ in self._observation().leaves()]

    @property
    def action_keys(self) -> list[Key]:
        """Names of the actions."""
        return [short(path) for path, _ in self._known().action]

    @property
    def action_key(self) -> Key:
        """Name of the first action."""
        return self.action_keys[0]

    @property
    def reward_keys(self) -> list[Key]:
        """Names of the rewards: one, unless the environment has more."""
        return [key for key, _ in self._reward().leaves()]

    @property
    def reward_key(self) -> Key:
        """Name of the reward of the step."""
        return "reward"

    @property
    def done_keys(self) -> list[Key]:
        """Names of the flags."""
        return list(FLAGS)

    @property
    def reset_keys(self) -> list[Key]:
        """Name of the flags that ask for a partial reset."""
        return ["_reset"]


def _only_one(specs: _specs.Composite) -> _specs.Spec | _specs.Composite:
    """The single leaf, if there is one."""
    leaves = list(specs.leaves())
    return leaves[0][1] if len(leaves) == 1 else specs


class Facts:
    """What a handle says of itself, kept when the handle is given over."""

    def __init__(self, handle: EnvHandle) -> None:
        self.id = handle.id
        self.num_envs = handle.num_envs
        self.batch: tuple[int, ...] = (handle.num_envs,) if handle.is_batched else ()
        self.max_episode_steps = handle.max_episode_steps
        self.observation = _specs.leaves(handle.observation, "observation")
        self.action = _specs.leaves(handle.action, "action")
        self.rewards = {tuple(path) for path in handle.rewards}
        #: Flags of groups.
        self.flags: list[Key] = [short(tuple(path)) for path in handle.flags]
        #: Actions, each with the observation that says which choices are legal.
        self.masks = {tuple(action): short(tuple(mask)) for action, mask in handle.masks}
        self.groups = {tuple(path): tuple(size) for path, size in handle.groups}
        #: Observations that states of policies begin with.
        self.states: set[Key] = {short(tuple(path)) for path in handle.states}

    def to_action(self, tensordict: TensorDictBase, path: tuple[str, ...], leaf: _specs.Description) -> Any:
        """The action at ``path`` as an array with a leading dimension for the environments."""
        import torch

        value = tensordict.get(short(path)).detach().cpu()
        spec = _specs.of(leaf)
        assert isinstance(spec, _specs.Spec)
        if leaf[0] == "one_hot" and value.is_floating_point():
            # Scores: the largest one chooses, before anything is rounded.
            value = value.reshape(self.num_envs, *spec.shape)
            chosen = [torch.zeros_like(v).scatter(-1, v.argmax(-1, True), 1) for v in value.split(list(leaf[1]), -1)]
            value = torch.cat(chosen, -1)
        expected = (self.num_envs, *spec.shape)
        if value.numel() != torch.Size(expected).numel():
            raise ValueError(
                f"action {short(path)!r} of {self.id}: expected shape {(*self.batch, *spec.shape)}, got {tuple(value.shape)}"
            )
        return value.reshape(expected).to(spec.dtype).numpy()
