"""Names, shapes and specs of environments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from windrow import _fence
from windrow._keys import Key
from windrow._lazy import numpy, tensordict as td, torch
from windrow._types import Array, Device
from windrow._values import action_in, public, split_of
from windrow._windrow import EnvHandle, other_encoding
from windrow.envs._specs import Composite, Leaf, draw, tree_of

FLAGS = ("done", "terminated", "truncated")


class Facts:
    """The description of a handle (see ``describe.rs``) in Python's types, kept when the handle is
    given over.
    """

    def __init__(self, handle: EnvHandle) -> None:
        told = handle.describe()
        self.id: str = told["id"]
        self.num_envs: int = told["num_envs"]
        self.batch: tuple[int, ...] = (self.num_envs,) if told["is_batched"] else ()
        self.max_episode_steps: int | None = told["max_episode_steps"]
        self.observation = [Leaf(*leaf) for leaf in told["observation"]]
        self.action = [Leaf(*leaf) for leaf in told["action"]]
        #: Actions of agents that differ from each other, with the columns of each.
        self.split = split_of(leaf.key for leaf in self.action)
        #: Observations that are rewards.
        self.rewards: set[Key] = set(told["rewards"])
        #: Observations that states of policies begin with.
        self.primed: set[Key] = set(told["primed"])
        #: Flags of groups.
        self.flags: list[Key] = told["flags"]
        #: Observations beside the environment's own.
        self.info: list[Key] = told["info"]
        #: Actions, each with the observation that says which choices are legal.
        self.masks: dict[Key, Key] = dict(told["masks"])
        self.groups: dict[Key, list[int]] = dict(told["groups"])
        #: Observations that follow as differences, each with the element type of these.
        self.deltas: dict[Key, str] = dict(told["deltas"])

    def leaves(self, part: str) -> list[Leaf]:
        """The leaves of ``"observation"``, ``"action"``, ``"reward"``, ``"done"`` or
        ``"state"``.
        """
        if part == "action":
            return self.action
        if part == "done":
            return [Leaf(name, "discrete", "bool", (1,), [2]) for name in FLAGS]
        if part == "reward":
            step = Leaf("reward", "unbounded", "float32", (1,))
            return list(
                {
                    step.key: step,
                    **{leaf.key: leaf for leaf in self.observation if leaf.key in self.rewards},
                }.values()
            )
        return (
            [leaf for leaf in self.observation if leaf.key not in self.rewards]
            if part == "observation"
            else []
        )

    def to_action(
        self, tensordict: td.TensorDictBase, leaf: Leaf, rows: int | None = None
    ) -> Array:
        """The action of ``leaf`` as an array with a leading dimension for the environments; zeros
        follow where there are fewer ``rows``.
        """
        value, rows = action_in(tensordict, leaf.key), self.num_envs if rows is None else rows
        if value is None:
            raise KeyError(
                f"expected an action {public(leaf.key)!r} for {self.id}, got {sorted(map(str, tensordict.keys()))}"
            )
        value, expected = value.detach().cpu(), (rows, *leaf.shape)
        options, is_float = list(leaf.nvec or ()), value.is_floating_point()
        if options and is_float and value.numel() == rows * sum(options):
            # The largest one chooses, before anything is rounded.
            parts = value.reshape(rows, -1).split(options, -1)
            value = torch.cat([_chosen(part, leaf.kind == "one_hot") for part in parts], -1)
        elif value.numel() != math.prod(expected) or (options and is_float):
            raise ValueError(self._misfit(leaf, value, rows))
        value = _cast(leaf, value.reshape(expected))
        if rows < self.num_envs:
            value = torch.cat([value, value.new_zeros(self.num_envs - rows, *leaf.shape)])
        return value.numpy()

    def _misfit(self, leaf: Leaf, value: torch.Tensor, rows: int) -> str:
        """The error of a ``value`` that is no action of ``leaf`` in ``rows`` environments."""
        batch = self.batch if rows == self.num_envs else (rows,)
        what, shape = f"action {public(leaf.key)!r} of {self.id}", tuple(value.shape)
        options = list(leaf.nvec or ())
        if options and value.is_floating_point():
            return (
                f"{what}: expected {leaf.dtype} {(*batch, *leaf.shape)}, or a float for each of {options} choices, got "
                f"{str(value.dtype).removeprefix('torch.')} {shape}"
            )
        one_hot = leaf.kind == "one_hot"
        way = other_encoding(one_hot, options, shape, batch) if options else None
        return f"{what}: expected shape {(*batch, *leaf.shape)}, got {shape}{way or ''}"

    def draw_action(
        self, leaf: Leaf, noise: numpy.random.Generator, mask: Array | None = None
    ) -> Array:
        """Random actions of ``leaf``, ``[num_envs, *shape]``: legal ones, where there is a ``mask``
        (an array) that says which are.
        """
        mask = None if mask is None else mask.reshape(self.num_envs, -1).astype(bool)
        return draw(leaf, noise, (self.num_envs,), mask)


def _cast(leaf: Leaf, value: torch.Tensor) -> torch.Tensor:
    """``value`` in the element type of ``leaf``. Digits may be lost between floats, but nothing
    becomes another whole number.
    """
    dtype: torch.dtype = getattr(torch, leaf.dtype)
    cast = value.to(dtype)
    if cast is not value and not dtype.is_floating_point and bool((lost := cast != value).any()):
        raise ValueError(
            f"action {public(leaf.key)!r}: expected values that {leaf.dtype} can hold, got {value[lost][0].item()}"
        )
    return cast


def _chosen(scores: torch.Tensor, one_hot: bool) -> torch.Tensor:
    """The choices of the largest ``scores``, ``[rows, n]``: indices, ``[rows, 1]``, or vectors."""
    index = scores.argmax(-1, True)
    return torch.zeros_like(scores).scatter(-1, index, 1) if one_hot else index


def _read(doc: str, get: Callable[[Any], Any]) -> Any:
    return property(get, doc=doc)


def _spec(part: str, told: str, *, bare: bool = False) -> tuple[Any, Any]:
    """Two properties: the specs of ``part``, and the same without dimensions for the environments.
    Where ``bare``, a single leaf has no composite around it.
    """

    def get(env: Described, batch: tuple[int, ...] | None = None) -> object:
        specs = env._specs_of(part, batch)
        keys = [key for key, _ in specs.leaves()] if bare else []
        # The first spec imports torchrl where it is installed: what specs are does not depend on
        # what a program has imported.
        public: Any = _fence.specs.converted(specs) if _fence.is_installed() else specs
        return public[keys[0]] if len(keys) == 1 else public

    single = f"{told} Those of one environment, without dimensions for several."
    return property(get, doc=told), property(lambda env: get(env, ()), doc=single)


class Described:
    """Shapes, names and specs of an environment. Where a name ends in ``_unbatched``, without
    dimensions for the environments.

    Specs are of TorchRL's classes where torchrl is installed, and have the same names and
    attributes where it is not.
    """

    _device: Device | None

    def _known(self) -> Facts:
        raise NotImplementedError

    @property
    def device(self) -> torch.device | None:
        """Where tensors are put, a ``torch.device`` or None."""
        return None if self._device is None else torch.device(self._device)

    batch_size: torch.Size = _read(
        "``[]`` for one environment, ``[n]`` for several in lockstep.",
        lambda env: torch.Size(env._known().batch),
    )
    shape: torch.Size = batch_size
    batch_dims: int = _read(
        "Number of dimensions for the environments.", lambda env: len(env._known().batch)
    )
    ndim: int = batch_dims
    num_envs: int = _read("Environments in lockstep.", lambda env: env._known().num_envs)
    batch_locked: bool = _read("The batch size does not change.", lambda env: True)
    max_episode_steps: int | None = _read(
        "Steps after which the environment truncates an episode by itself, if it does.",
        lambda env: env._known().max_episode_steps,
    )

    def ndimension(self) -> int:
        """The same as :attr:`ndim`."""
        return self.ndim

    def numel(self) -> int:
        """Number of environments."""
        return math.prod(self._known().batch)

    # Specs

    observation_spec, observation_spec_unbatched = _spec(
        "observation", "Names and specs of the observations."
    )
    full_observation_spec, full_observation_spec_unbatched = (
        observation_spec,
        observation_spec_unbatched,
    )
    action_spec, action_spec_unbatched = _spec(
        "action", "The action's spec; a composite where there are several.", bare=True
    )
    full_action_spec, full_action_spec_unbatched = _spec(
        "action", "Names and specs of the actions."
    )
    reward_spec, reward_spec_unbatched = _spec(
        "reward",
        "The reward's spec, ``[*batch, 1]``; a composite where there are several.",
        bare=True,
    )
    full_reward_spec, full_reward_spec_unbatched = _spec(
        "reward",
        "Specs of the rewards under their names: that of the step, and others if the environment has some.",
    )
    done_spec, done_spec_unbatched = _spec(
        "done", "Specs of ``done``, ``terminated`` and ``truncated``, ``[*batch, 1]``."
    )
    full_done_spec, full_done_spec_unbatched = done_spec, done_spec_unbatched
    state_spec, state_spec_unbatched = _spec("state", "What is read beside actions: nothing.")
    full_state_spec, full_state_spec_unbatched = state_spec, state_spec_unbatched
    input_spec, input_spec_unbatched = _spec(
        "input", "``full_state_spec`` and ``full_action_spec``."
    )
    output_spec, output_spec_unbatched = _spec(
        "output", "``full_reward_spec``, ``full_done_spec`` and ``full_observation_spec``."
    )
    specs = _spec("all", "``output_spec`` and ``input_spec``.")[0]

    def _specs_of(self, part: str, batch: tuple[int, ...] | None = None) -> Composite:
        facts = self._known()
        batch = facts.batch if batch is None else batch
        below = {
            "input": {f"full_{name}_spec": name for name in ("state", "action")},
            "output": {f"full_{name}_spec": name for name in ("reward", "done", "observation")},
            "all": {f"{name}_spec": name for name in ("output", "input")},
        }.get(part)
        if below is not None:
            return Composite(
                {name: self._specs_of(inner, batch) for name, inner in below.items()},
                batch,
                self._device,
            )
        return tree_of(facts.leaves(part), batch, facts.groups, self._device)

    # Names

    observation_keys: list[Key] = _read(
        "Names of the observations.", lambda env: env._keys("observation")
    )
    action_keys: list[Key] = _read("Names of the actions.", lambda env: env._keys("action"))
    action_key: Key = _read("Name of the first action.", lambda env: env.action_keys[0])
    reward_keys: list[Key] = _read(
        "Names of the rewards: one, unless the environment has more.",
        lambda env: env._keys("reward"),
    )
    reward_key: Key = _read(
        "Name of the reward of the step, or of the only other one, such as that of all agents.",
        lambda env: env.reward_keys[-1] if len(env.reward_keys) == 2 else "reward",
    )
    done_keys: list[Key] = _read("Names of the flags.", lambda env: list(FLAGS))
    done_key: Key = _read(
        "Name of the flag that says whether an episode ended.", lambda env: "done"
    )
    done_keys_groups: list[list[Key]] = _read(
        "Names of the flags, those of one group together.", lambda env: [env.done_keys]
    )
    state_keys: list[Key] = _read("Names of what is read beside actions: none.", lambda env: [])
    reset_keys: list[Key] = _read(
        "Name of the flags that ask for a partial reset.", lambda env: ["_reset"]
    )

    def _keys(self, part: str) -> list[Key]:
        return list(dict.fromkeys(public(leaf.key) for leaf in self._known().leaves(part)))
