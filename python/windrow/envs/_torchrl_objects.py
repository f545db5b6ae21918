"""What TorchRL's environments observe and no array holds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import torch
from tensordict import TensorDictBase, unravel_key
from torchrl.data import tensor_specs as theirs
from torchrl.envs import EnvBase

from windrow._objects import Form, Seat, values_of
from windrow.envs._specs import Key, Leaf, path, short


class Numbered:
    """Entries of an environment whose values are kept by a keeper, by number: what is no tensor, and tensors whose shape changes.

    Attributes:
        forms: what they are like.
        numbers: of the present values, ``[num_envs, *shape]`` for each entry.
        split: actions whose shapes differ from one agent to the next, with a column and its spec for each.
    """

    def __init__(self, env: EnvBase) -> None:
        #: Keeps them, once there is one.
        self.seat: Seat | None = None
        self._batch = len(env.batch_size)
        self.forms = forms(env)
        self.split = split(env)
        count = math.prod(env.batch_size)
        self.numbers = {key: torch.zeros(count, *form.shape, dtype=torch.int64) for key, form in self.forms.items()}

    def __getstate__(self) -> dict[str, Any]:
        # Numbers of another process mean nothing here.
        return {**vars(self), "numbers": {key: numbers * 0 for key, numbers in self.numbers.items()}}

    def describe(self) -> None:
        """Notes what the entries are like, where values are kept."""
        if self.seat is not None:
            self.seat.keeper.describe(self.forms, {key: list(columns) for key, columns in self.split.items()})

    def leaves(self) -> dict[Key, Leaf]:
        """The columns of the numbers."""
        return {key: Leaf(key, "unbounded", "int64", form.shape) for key, form in self.forms.items()}

    def read(self, root: TensorDictBase, envs: Iterable[int]) -> None:
        """Keeps what these of the environments observe in ``root``, an observation of all."""
        if self.seat is None:
            return
        envs = list(envs)
        for key, form in self.forms.items():
            names = path(key)
            # Not in place: the last ones may be on their way.
            numbers = self.numbers[key].clone()
            each = math.prod(form.shape)
            places = list(itertools.chain.from_iterable(range(env * each, (env + 1) * each) for env in envs))
            if not has(root, names):
                # Nothing has the number 0.
                numbers.view(-1)[places] = 0
                self.numbers[key] = numbers
                continue
            parent = root.get(names[:-1]) if names[1:] else root
            values = values_of(parent, names[-1], self._batch + len(form.shape), form.is_tensor)
            if form.is_tensor:
                # The environment may write to its own again.
                values = [value.detach().cpu().clone() for value in values]
            kept = self.seat.keep(key, {place: values[place] for place in places})
            numbers.view(-1)[places] = torch.tensor(kept, dtype=torch.int64)
            self.numbers[key] = numbers


def has(root: TensorDictBase, names: tuple[str, ...]) -> bool:
    """Whether ``root`` has an entry, which there may be no tensor of."""
    parent = root.get(names[:-1], None) if names[1:] else root
    return parent is not None and names[-1] in parent.keys()


def forms(env: EnvBase) -> dict[Key, Form]:
    """The entries that ``env`` observes and no array holds."""
    observed, batch = env.full_observation_spec, len(env.batch_size)
    found = {}
    for key, spec in observed.items(True, True):
        key = unravel_key(key)
        names = path(key)
        is_tensor = not isinstance(spec, theirs.NonTensor)
        if spec is None or any(name.startswith("_") for name in names) or (is_tensor and all(dim >= 0 for dim in spec.shape)):
            continue
        group = tuple(observed[names[:-1]].shape[batch:]) if names[1:] else ()
        if is_tensor:
            own = (max(dim, 0) for dim in spec.shape[batch + len(group) :])
            found[key] = Form(group, True, torch.zeros(*own, dtype=spec.dtype))
        else:
            found[key] = Form(group, False, spec.example_data)
    return found


def split(env: EnvBase) -> dict[Key, dict[Key, Any]]:
    """The actions of agents that differ from each other, with a name and a spec for each agent's."""
    acted, batch = env.full_action_spec, len(env.batch_size)
    found: dict[Key, dict[Key, Any]] = {}
    for key, spec in acted.items(True, True):
        names = path(unravel_key(key))
        # Agents are in one dimension, behind those of the batch.
        if names[1:] and any(dim < 0 for dim in spec.shape) and acted[names[:-1]].ndim == batch + 1:
            own = spec.unbind(batch)
            if all(dim >= 0 for one in own for dim in one.shape):
                found[short(names)] = {" ".join((*names, str(agent))): one for agent, one in enumerate(own)}
    return found
