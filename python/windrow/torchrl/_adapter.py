"""TorchRL's environments behind windrow's engine."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tensordict import TensorDictBase, unravel_key
from torchrl.data import tensor_specs as theirs
from torchrl.envs import ActionMask, Compose, EnvBase, TransformedEnv

from windrow import _data, _fence
from windrow._codecs import own_codec
from windrow._keys import Key, path, short
from windrow._values import MEMBERS, joined, split_of, values_of
from windrow._warnings import warn
from windrow.envs._specs import DTYPES, Leaf, delta_type

#: Libraries whose environments hold no state: several can step one object.
_STATELESS = {"brax", "jumanji"}


def of(env: object) -> Adapter | None:
    """The adapter of an environment of TorchRL; None for another object."""
    return Adapter(env) if isinstance(env, EnvBase) else None


def innermost(env: EnvBase) -> tuple[EnvBase, Any]:
    """The environment inside of all transforms, and what it goes around, as TorchRL's
    ``GymWrapper`` does; None where that is nothing, or holds no state.
    """
    env = without_transforms(env)
    wrapped = vars(env).get("_env")
    return env, None if type(wrapped).__module__.partition(".")[0] in _STATELESS else wrapped


def without_transforms(env: EnvBase) -> EnvBase:
    """The environment inside of all ``TransformedEnv``."""
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env


class Adapter:
    """An environment of TorchRL that takes and gives arrays, one for each leaf,
    ``[num_envs, *shape]``.

    Batch dimensions are flattened into one. Rewards and flags of other names than windrow's, such
    as those of single agents, are observed too, so that nothing is lost, rewards under ``"next"``
    alone. The reward of a step is then the sum of all rewards, unless there is one called
    ``"reward"``, which keeps its element type; the flags say whether any of an environment's are
    set. As in TorchRL, flags at the root have the last word: those of agents below end no episode
    then, and stay as they are where the root ends one.

    What the ``state_spec`` names, and what is observed, is passed on where the policy writes it;
    otherwise the environment reads what a reset or step has given. Masks of actions that only the
    ``state_spec`` names and resets return are observed too.

    What it observes that is no tensor, or whose shape changes, is a list of values of bytes in
    place of an array.
    """

    def __init__(self, env: EnvBase) -> None:
        self._env = env
        self.id = type(env).__name__
        self._batch = tuple(env.batch_size)
        self.num_envs = math.prod(self._batch)
        self.is_batched = bool(self._batch)
        self._root: TensorDictBase | None = None
        self._begun: TensorDictBase | None = None
        #: What specs name, and the first reset and the first step lack.
        self._lacking: dict[str, set[Key]] = {}
        #: What is observed and no array holds.
        self._unheld = _unheld(env)
        observed = dict(_leaves(env.full_observation_spec, self._unheld))
        state = {key: spec for key, spec in _leaves(env.full_state_spec) if key not in observed}
        #: Actions that differ from one agent to the next, with the columns of each agent.
        self._split = _split(env)
        acted = dict(_leaves(env.full_action_spec, self._split))
        for columns in self._split.values():
            acted.update(columns)
        self._maskable = [key for key, spec in acted.items() if hasattr(spec, "mask")]
        if others := _non_tensors(env.full_action_spec):
            raise TypeError(
                f"actions of {self.id} are no tensors, which no policy writes here: {others}"
            )
        self._masks, self._deltas = _masks(env), _deltas(env)
        #: Names for masks that specs of actions hold and nothing that is observed tells of, each
        #: with the action and a shape.
        self._legal: dict[Any, tuple[Any, tuple[int, ...]]] = {}
        # Transforms read masks of the state too.
        observed.update((key, state.pop(key)) for key in list(state) if key in self._masks.values())
        rewards = dict(_leaves(env.full_reward_spec))
        for key, shape in ((key, self._shape(spec)) for key, spec in rewards.items()):
            if not isinstance(key, tuple) and math.prod(shape) != 1:
                one = f"LineariseRewards(in_keys=[{key!r}], weights={[1.0] * shape[-1]})"
                raise ValueError(
                    f"reward {key!r} of {self.id} has shape {shape}: expected one number for each environment. "
                    f"TransformedEnv(env, {one}) of torchrl.envs makes it one"
                )
        self._rewards = ["reward"] if "reward" in rewards else list(rewards)
        own = {
            key: spec
            for key, spec in rewards.items()
            if key != "reward" or _type(spec.dtype) != "float32"
        }
        self._own_rewards = list(own)
        observed.update(own)
        flags = dict(_leaves(env.full_done_spec))
        self._check_flags(flags)
        nested = {key: spec for key, spec in flags.items() if isinstance(key, tuple)}
        self._nested_flags = list(nested)
        self._has_warned = False
        observed.update(nested)
        self._specs = observed
        self._acted = [(key, acted[key]) for key in _in_order(acted)]
        self._action = [self._action_leaf(key, spec) for key, spec in self._acted]
        self._state = state
        #: The masks in the state that resets return.
        self._returned: list[Any] = []
        self._written: list[tuple[Any, Any]] = []
        self._all_flags = list(flags)
        ending = _outermost(flags)
        self._flags = {
            name: [key for key in ending if path(key)[-1] == name]
            for name in ("done", "terminated", "truncated")
        }

    def __repr__(self) -> str:
        return " ".join(repr(self._env).split())

    @property
    def unwrapped(self) -> EnvBase:
        """The environment of TorchRL."""
        return self._env

    def _check_flags(self, flags: dict[Key, theirs.TensorSpec]) -> None:
        """Checks that transforms keep the shape of flags at the root: batches have one for each
        environment.
        """
        own = without_transforms(self._env).full_done_spec
        for key, shape in ((key, self._shape(spec)) for key, spec in flags.items()):
            if (
                math.prod(shape) != 1
                and (inner := own.get(key, None)) is not None
                and inner.shape != flags[key].shape
            ):
                raise ValueError(
                    f"{key!r} has shape {list(shape)} by a transform around {type(without_transforms(self._env)).__name__}: expected "
                    "[1], one flag for each environment, as batches have it: let the transform write another entry, such as "
                    f'out_key=("agents", {key!r})'
                )

    def _groups(self) -> dict[Any, tuple[int, ...]]:
        """Dimensions that nested specs have beside the batch's, outer ones first."""
        env = self._env
        found: dict[Any, tuple[int, ...]] = {}
        for spec in (
            env.full_observation_spec,
            env.full_action_spec,
            env.full_reward_spec,
            env.full_done_spec,
        ):
            nested = {
                unravel_key(key): leaf
                for key, leaf in spec.items(True)
                if isinstance(leaf, theirs.Composite)
            }
            for key, leaf in sorted(nested.items(), key=lambda entry: len(path(entry[0]))):
                found.setdefault(key, self._shape(leaf))
        return {key: size for key, size in found.items() if size}

    @cached_property
    def _observation(self) -> list[Leaf]:
        """The observations, found when the environment is about to be stepped."""
        self._find_masks()
        self._find_returned()
        leaves = {key: self._leaf(key, spec) for key, spec in self._specs.items()}
        leaves.update(
            (key, Leaf(key, "unbounded", "bool", shape)) for key, (_, shape) in self._legal.items()
        )
        leaves.update(
            (key, Leaf(key, "unbounded", "bytes", own.shape, example=own.example))
            for key, own in self._unheld.items()
        )
        return [leaves[key] for key in _in_order(leaves)]

    def describe(self) -> dict[str, Any]:
        """The entries of ``Description`` in ``describe.rs``."""
        observed = self._observation
        names = [path(leaf.key) for leaf in (*observed, *self._action)]
        # A spec may have a group without a leaf that a column has, and limit an action that is
        # split.
        groups = {
            key: own
            for key, own in self._groups().items()
            if any(name[: len(path(key))] == path(key) for name in names)
        }
        acted = {key for key, _ in self._acted}
        return {
            "id": self.id,
            "num_envs": self.num_envs,
            "is_batched": self.is_batched,
            "dimensions": list(self._batch),
            "max_episode_steps": None,
            "observation": observed,
            "action": self._action,
            "state": [self._leaf(key, self._state[key]) for key in _in_order(self._state)],
            "rewards": self._own_rewards,
            "primed": [],
            "flags": self._nested_flags,
            "info": [],
            "masks": [(action, mask) for action, mask in self._masks.items() if action in acted],
            "groups": list(groups.items()),
            "deltas": list(self._deltas.items()),
        }

    def _find_masks(self) -> None:
        """Finds the masks that the environment keeps in specs of its actions, as TorchRL's
        ``PettingZooWrapper`` does: where they are observed, or else under a name of their own.
        """
        masked = [key for key in self._maskable if key not in self._masks]
        if not masked:
            return
        # Environments set them in their first reset.
        begun = self._begin()
        observed = self._specs
        for key in masked:
            mask = self._mask(key)
            if mask is None:
                continue
            name = short((*_group(key), "action_mask"))
            seen = begun.get(name, None) if name in observed else None
            if (
                seen is None
                or seen.numel() != mask.numel()
                or not torch.equal(seen.bool().flatten(), mask.flatten())
            ):
                name = short((*_group(key), "legal_actions" if name in observed else "action_mask"))
                self._legal[name] = (key, tuple(mask.shape[len(self._batch) :]))
            self._masks[key] = name

    def _find_returned(self) -> None:
        """Finds the action masks that resets return and that only the spec of the state names.
        Windrow's ``ActionMask`` reads them.
        """
        choices = {math.prod((*self._shape(spec), *many)) for spec, many in self._choosing()}
        masks = [
            key
            for key, spec in self._state.items()
            if spec.dtype == torch.bool and math.prod(self._shape(spec)) in choices
        ]
        if masks:
            begun = self._begin()
            self._returned = [key for key in masks if _has(begun, path(key))]
            self._specs.update((key, self._state.pop(key)) for key in self._returned)

    def _choosing(self) -> Iterator[tuple[Any, tuple[int, ...]]]:
        """Specs of discrete actions, each with the number of choices unless its shape has that."""
        for _, spec in self._acted:
            if isinstance(spec, theirs.OneHot):
                yield spec, ()
            elif isinstance(spec, theirs.Categorical) and not isinstance(
                spec, theirs.MultiCategorical
            ):
                yield spec, (int(spec.n),)

    def _begin(self) -> TensorDictBase:
        """The result of the first reset, which the first :meth:`reset` uses too."""
        if self._begun is None:
            self._begun = self._env.reset()
        return self._begun

    def _mask(self, action: Key) -> torch.Tensor | None:
        """The choices that the spec of ``action`` says are legal at present. Transforms have specs
        of their own around it.
        """
        return getattr(
            without_transforms(self._env).full_action_spec.get(action, None), "mask", None
        )

    def reset(self, envs: list[int], seeds: list[int | None]) -> list[Any]:
        """Resets the environments ``envs``. TorchRL derives the seeds of a batch from the first
        one.
        """
        if seeds and seeds[0] is not None:
            # TorchRL seeds with 32 bits.
            self._env.set_seed(seeds[0] % (2**32 - 1))
        if len(envs) == self.num_envs or self._root is None:
            begun, self._begun = self._begun, None
            self._root = (
                self._env.reset() if begun is None or (seeds and seeds[0] is not None) else begun
            )
        else:
            asked = torch.zeros(self.num_envs, dtype=torch.bool)
            asked[envs] = True
            for key in self._env.reset_keys:
                self._root.set(key, self._like_done(asked, key))
            self._root = self._env.reset(self._root)
        self._lacks("reset", self._root, self._own_rewards)
        return self._arrays(self._root)

    def _like_done(self, asked: torch.Tensor, key: Key) -> torch.Tensor:
        flag = next(flag for flag in self._all_flags if _group(flag) == _group(key))
        shape = self._env.full_done_spec[flag].shape
        asked = asked.reshape(self._batch + (1,) * (len(shape) - len(self._batch)))
        return asked.expand(shape).to(self._env.device or "cpu")

    def reads(self, keys: list[Any]) -> None:
        """The policy writes these states and observations."""
        readable = {**self._specs, **self._state}
        self._written = [(key, readable[key]) for key in keys]

    def step(self, actions: list[Any], state: list[Any]) -> tuple[list[Any], Any, Any, Any]:
        """Steps all environments; ``state`` has the columns of the policy that :meth:`reads`
        named.
        """
        if self._root is None:
            raise RuntimeError(f"{self.id} was stepped before it was reset")
        for (key, spec), leaf, array in zip(self._acted, self._action, actions, strict=True):
            value = torch.from_numpy(array)
            # A policy's integers of a type of their own, such as the environment gets from TorchRL.
            is_own = str(value.dtype) != f"torch.{leaf.dtype}"
            self._write(key, spec, value if is_own else _as_type(value, spec.dtype))
        for (key, spec), array in zip(self._written, state, strict=True):
            self._write(key, spec, _as_type(torch.from_numpy(array), spec.dtype))
        if self._split:
            self._root = joined(
                self._root, split_of(key for key, _ in self._acted), len(self._batch)
            )
        stepped = self._env.step(self._root)
        following = stepped.get("next")
        for key in self._returned:
            # A step need not return a mask that it leaves unchanged.
            if not _has(following, path(key)):
                following.set(key, stepped.get(key))
        if self._lacks("step", following):
            self._warn_of_others(following)
        self._root = self._env.step_mdp(stepped)
        for key in self._returned:
            # The environment has to read the newest mask: TorchRL's `step_mdp` keeps that of the
            # reset.
            self._root.set(key, following.get(key))
        reward = sum(self._rows(following.get(key)).float().sum(-1) for key in self._rewards)
        any_of = {name: self._any(following, keys) for name, keys in self._flags.items()}
        terminated, truncated = any_of["terminated"], any_of["truncated"]
        truncated = truncated | (any_of["done"] & ~terminated)
        self._warn_of_going_on(following, terminated | truncated)
        return (
            self._arrays(following),
            torch.as_tensor(reward).numpy(),
            terminated.numpy(),
            truncated.numpy(),
        )

    def _warn_of_going_on(self, following: TensorDictBase, ended: torch.Tensor) -> None:
        """Warns once if the flags at the root end an episode and the flags of an agent do not."""
        if self._has_warned or not self._nested_flags or not ended.any():
            return
        for group in dict.fromkeys(map(_group, self._nested_flags)):
            flags = [
                self._rows(following.get(key)) for key in self._nested_flags if _group(key) == group
            ]
            if not torch.stack(flags).any(0)[ended].all():
                self._has_warned = True
                name = short((*group, "done"))
                warn(
                    f"an episode of {self.id} ends by the flags at the root, while those of agents, {name!r}, are not set: advantages that "
                    "end by the agents' flags run into the next episode. Let them end by the root's flags or, for PettingZoo, make the wrapper with "
                    "done_on_any=False"
                )
                return

    def _write(self, key: Key, spec: theirs.TensorSpec, value: torch.Tensor) -> None:
        """Writes what the environment reads in its next step."""
        assert self._root is not None
        self._root.set(key, value.reshape(spec.shape).to(device=self._env.device))

    def _lacks(self, what: str, root: TensorDictBase, absent: Iterable[Key] = ()) -> bool:
        """Compares a step or a reset with the specs, but for entries that are ``absent`` there.
        Warns of what the first of its kind lacks, since batches have what the specs name. Returns
        whether it is the first.

        Raises:
            RuntimeError: a later one lacks what the first had.
        """
        apart = {*self._legal, *absent}
        missing = {
            key
            for key in (*self._specs, *self._unheld)
            if key not in apart and not _has(root, path(key))
        }
        known = self._lacking.setdefault(what, missing)
        if left := sorted(map(repr, missing - known)):
            raise RuntimeError(
                f"this {what} of {self.id} lacks {', '.join(left)}, which its specs name and those before had"
            )
        if known is missing and missing:
            warn(
                f"{what}s of {self.id} lack what its observation_spec names, and batches have zeros there: {sorted(map(str, missing))}"
            )
        return known is missing

    def _warn_of_others(self, following: TensorDictBase) -> None:
        """Warns of what a step gives and no spec names: batches do without it."""
        env = self._env
        given = {unravel_key(key) for key in following.keys(True, True)}
        specs = (
            env.full_observation_spec,
            env.full_reward_spec,
            env.full_done_spec,
            env.full_state_spec,
            env.full_action_spec,
        )
        named = {unravel_key(key) for spec in specs for key in spec.keys(True, True)}
        named.update(("delta", *path(key)) for key in self._deltas)
        if others := sorted(map(str, given - named)):
            warn(
                f"steps of {self.id} give what none of its specs names, and batches leave out; an entry in observation_spec keeps it: {others}"
            )

    def close(self) -> None:
        """Closes the environment."""
        if not self._env.is_closed:
            self._env.close()

    def _any(self, following: TensorDictBase, keys: list[Any]) -> torch.Tensor:
        found = torch.zeros(self.num_envs, dtype=torch.bool)
        for key in keys:
            found |= self._rows(following.get(key)).any(-1)
        return found

    def _rows(self, value: torch.Tensor) -> torch.Tensor:
        return value.detach().cpu().reshape(self.num_envs, -1)

    def _arrays(self, root: TensorDictBase) -> list[Any]:
        """What is observed in ``root``, of all environments."""
        arrays: list[Any] = []
        for key, _, name, shape, *_ in self._observation:
            if key in self._unheld:
                arrays.append(self._unheld[key].read(root, path(key), self._batch))
                continue
            rows = (self.num_envs, *shape)
            value = self._mask(self._legal[key][0]) if key in self._legal else root.get(key, None)
            if value is None:
                # Without a mask all is legal, and rewards have no place at a root.
                value = torch.ones(rows) if key in self._legal else torch.zeros(rows)
            arrays.append(value.detach().cpu().reshape(rows).to(getattr(torch, name)).numpy())
        return arrays

    def _shape(self, spec: theirs.TensorSpec) -> tuple[int, ...]:
        return tuple(spec.shape[len(self._batch) :])

    def _leaf(self, key: Key, spec: theirs.TensorSpec) -> Leaf:
        """An observation or a state, of any value."""
        return Leaf(key, "unbounded", _type(spec.dtype), self._shape(spec))

    def _action_leaf(self, key: Key, spec: theirs.TensorSpec) -> Leaf:
        """An action, as windrow's random policy and heads read it."""
        shape = self._shape(spec)
        # Each of several agents would have a vector of its own.
        if (
            isinstance(spec, (theirs.OneHot, theirs.MultiOneHot, theirs.MultiCategorical))
            and math.prod(shape[:-1]) != 1
        ):
            raise TypeError(
                f"action {key!r} of {self.id} is {type(spec).__name__} of shape {shape}: expected one vector, or indices where there "
                "are several agents (categorical_actions=True)"
            )
        # Before OneHot: the one of several choices is one of a single choice, too.
        if isinstance(spec, (theirs.MultiOneHot, theirs.MultiCategorical)):
            kind = "one_hot" if isinstance(spec, theirs.MultiOneHot) else "multi_discrete"
            return Leaf(key, kind, "int64", shape, [box.n for box in spec.space])
        if isinstance(spec, theirs.OneHot):
            return Leaf(key, "one_hot", "int64", shape, [spec.space.n])
        if isinstance(spec, theirs.Binary):
            if spec.dtype in (torch.bool, torch.int8):
                return Leaf(key, "binary", "int8", shape)
            elements = math.prod(shape)
            return Leaf(
                key, "bounded", _type(spec.dtype), shape, None, [0.0] * elements, [1.0] * elements
            )
        if isinstance(spec, theirs.Categorical):
            kind = "multi_discrete" if shape else "discrete"
            return Leaf(key, kind, "int64", shape, [spec.space.n] * math.prod(shape))
        if isinstance(spec, theirs.Bounded):
            own = (0,) * len(self._batch)
            low, high = (
                bound[own].double().flatten().tolist()
                for bound in (spec.space.low, spec.space.high)
            )
            return Leaf(key, "bounded", _type(spec.dtype), shape, None, low, high)
        if isinstance(spec, theirs.Unbounded):
            return self._leaf(key, spec)
        raise TypeError(
            f"action {key!r} of {self.id}: specs of type {type(spec).__name__} are not supported"
        )


class _Unheld(NamedTuple):
    """What is observed and no array holds.

    Attributes:
        shape: dimensions of the column, each of whose elements is a value: those of the group that
            the entry is in.
        is_tensor: whether values are tensors.
        example: the bytes of a value, for a policy that is given none.
    """

    shape: tuple[int, ...]
    is_tensor: bool
    example: bytes

    def read(
        self, root: TensorDictBase, names: tuple[str, ...], batch: tuple[int, ...]
    ) -> list[bytes]:
        """The bytes of each value of the entry ``names``; none where ``root`` lacks it."""
        if not _has(root, names):
            return [self.example if self.is_tensor else b""] * math.prod((*batch, *self.shape))
        parent = root.get(names[:-1]) if names[1:] else root
        values = values_of(parent, names[-1], len(batch) + len(self.shape), self.is_tensor)
        return [own_codec().write(value, names) for value in values]


def _unheld(env: EnvBase) -> dict[Key, _Unheld]:
    """The entries that ``env`` observes and no array holds."""
    observed, batch = env.full_observation_spec, len(env.batch_size)
    found = {}
    for key, spec in observed.items(True, True):
        key = unravel_key(key)
        names = path(key)
        is_tensor = not isinstance(spec, theirs.NonTensor)
        if (
            spec is None
            or any(name.startswith("_") for name in names)
            or (is_tensor and all(dim >= 0 for dim in spec.shape))
        ):
            continue
        group = tuple(observed[names[:-1]].shape[batch:]) if names[1:] else ()
        if is_tensor:
            own = (max(dim, 0) for dim in spec.shape[batch + len(group) :])
            found[key] = _Unheld(group, True, _data.tensor(torch.zeros(*own, dtype=spec.dtype)))
        else:
            found[key] = _Unheld(group, False, own_codec().write(spec.example_data, names))
    return found


def _has(root: TensorDictBase, names: tuple[str, ...]) -> bool:
    """Whether ``root`` has an entry, which there may be no tensor of."""
    parent = root.get(names[:-1], None) if names[1:] else root
    return parent is not None and names[-1] in parent.keys()


def _split(env: EnvBase) -> dict[Key, dict[Key, Any]]:
    """The actions of agents that differ from each other, with the name of a column and a spec for
    each agent's.
    """
    acted, batch = env.full_action_spec, len(env.batch_size)
    found: dict[Key, dict[Key, Any]] = {}
    for key, spec in acted.items(True, True):
        names = path(unravel_key(key))
        # Agents are in one dimension, behind those of the batch.
        if names[1:] and any(dim < 0 for dim in spec.shape) and acted[names[:-1]].ndim == batch + 1:
            own = spec.unbind(batch)
            if all(dim >= 0 for one in own for dim in one.shape):
                found[short(names)] = {
                    (MEMBERS, *names, str(agent)): one for agent, one in enumerate(own)
                }
    return found


def _non_tensors(spec: theirs.Composite) -> str:
    """The keys of leaves that hold no tensors."""
    leaves = spec.items(True, True)
    return ", ".join(
        repr(unravel_key(key)) for key, leaf in leaves if isinstance(leaf, theirs.NonTensor)
    )


def _masks(env: EnvBase) -> dict[Key, Key]:
    """Actions that an ``ActionMask`` or windrow's environment inside limits, each with the
    observation that does.
    """
    masks = [
        transform.in_keys for transform in _transforms(env) if isinstance(transform, ActionMask)
    ]
    inner = vars(without_transforms(env)).get("masks", {})
    return {**inner, **{unravel_key(action): unravel_key(mask) for action, mask in masks}}


def _deltas(env: EnvBase) -> dict[Key, str]:
    """Observations that a ``NextObservationDelta`` makes differences of, each with the element type
    of these.
    """
    transforms = [
        transform
        for transform in _transforms(env)
        if _fence.is_a(transform, "NextObservationDelta")
    ]
    inner = vars(without_transforms(env)).get("deltas", {})
    return {
        **inner,
        **{
            unravel_key(key): delta_type(transform)
            for transform in transforms
            for key in transform.in_keys or ()
        },
    }


def _transforms(env: EnvBase) -> list[Any]:
    """All transforms around an environment, the outermost environment's first."""
    left: list[Any] = []
    while isinstance(env, TransformedEnv):
        left.append(env.transform)
        env = env.base_env
    return list(_flat(left))


def _flat(transforms: Iterable[Any]) -> Iterator[Any]:
    for transform in transforms:
        if isinstance(transform, Compose):
            yield from _flat(transform)
        else:
            yield transform


def _leaves(spec: theirs.Composite, apart: Container[Any] = ()) -> list[tuple[Any, Any]]:
    """Each leaf that holds numbers, with its key, but those that are kept ``apart``."""
    found, changing = [], {}
    for key, leaf in spec.items(True, True):
        key = unravel_key(key)
        names = path(key)
        if (
            leaf is not None
            and key not in apart
            and not isinstance(leaf, theirs.NonTensor)
            and not any(n.startswith("_") for n in names)
        ):
            if any(dim < 0 for dim in leaf.shape):
                changing[key] = tuple(leaf.shape)
            found.append((key, leaf))
    if changing:
        shapes = ", ".join(f"{key!r} {shape}" for key, shape in changing.items())
        raise TypeError(
            f"shapes change where they have -1, expected such as stay the same: {shapes}. A transform can pad them; observations can be "
            f"done without: TransformedEnv(env, ExcludeTransform({', '.join(map(repr, changing))})) of torchrl.envs"
        )
    return found


def _in_order(keys: Iterable[Key]) -> list[Key]:
    """Keys in the order of the tree that they make: those of one group side by side, where the
    first of them is.
    """
    rank: dict[tuple[str, ...], int] = {}
    for key in keys:
        for depth in range(1, len(path(key)) + 1):
            rank.setdefault(path(key)[:depth], len(rank))
    return sorted(
        keys, key=lambda key: [rank[path(key)[:depth]] for depth in range(1, len(path(key)) + 1)]
    )


def _as_type(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``value`` in an element type, or as it is where that is a type of integers that cannot hold
    it: TorchRL passes it on, too.
    """
    cast = value.to(dtype)
    is_held = (
        dtype.is_floating_point
        or dtype.is_complex
        or cast is value
        or torch.equal(cast.to(value.dtype), value)
    )
    return cast if is_held else value


def _type(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name in DTYPES:
        return name
    return "float32" if dtype.is_floating_point else "int64"


def _group(key: Key) -> tuple[str, ...]:
    return path(key)[:-1]


def _outermost(flags: Iterable[Key]) -> list[Key]:
    """The flags that no other flags are around."""
    groups = {_group(key) for key in flags}
    return [
        key
        for key in flags
        if not any(_group(key)[:depth] in groups for depth in range(len(_group(key))))
    ]


if TYPE_CHECKING:
    from windrow._ports import EnvPort

    def _keep(env: Adapter) -> EnvPort:
        return env
