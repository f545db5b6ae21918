"""What all vectors of windrow have in common."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

Notes = list[tuple[int, dict[str, Any]]]
"""What environments have to say beside their observations, in the order in which it joins ``info``: the environment and its ``info``. Of
one that has ended and begun anew in the same step, first ``"final_obs"`` and ``"final_info"``, then what its reset returned."""

Stepped = tuple[Any, Any, Any, Any, Notes]
"""Observations, rewards, whether episodes were terminated, whether they were truncated, and notes."""

#: Types of Python's whose values Gymnasium keeps in arrays of numbers.
_NUMBERS = (int, float, bool)

#: The forms of ``info["final_info"]``.
FORMS = ("arrays", "dictionaries")


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector of environments that windrow steps, made by :func:`windrow.make_vec`.

    Observations, rewards and flags are arrays over memory that is used again once nobody holds them: what you keep, an array, a slice of
    one or a tensor over one, never changes.

    Attributes:
        autoreset_mode: when an environment begins another episode.
    """

    def __init__(
        self, num_envs: int, observed: Any, acted: Any, mode: AutoresetMode, metadata: dict[str, Any], form: str = "arrays"
    ) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observed, acted
        self.observation_space, self.action_space = batch_space(observed, num_envs), batch_space(acted, num_envs)
        self.autoreset_mode = mode
        self.metadata = {**metadata, "autoreset_mode": mode}
        self._form = form

    # What kinds of vectors do in their own ways

    def _begin(self, envs: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> tuple[Any, Notes]:
        """Begins an episode in each of ``envs``, with its seed: the observations of all, and notes."""
        raise NotImplementedError

    def _stepped(self, actions: Any) -> Stepped:
        """Steps all environments."""
        raise NotImplementedError

    def _called(self, envs: Sequence[int], name: str, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> list[Any]:
        """What the method ``name`` of each of ``envs`` returns, or its attribute of this name."""
        raise NotImplementedError

    def _set(self, envs: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Sets an attribute of each of ``envs``."""
        raise NotImplementedError

    def _are_wrapped(self, envs: Sequence[int], wrapper: type) -> list[bool]:
        """Whether each of ``envs`` has this wrapper of Gymnasium's around it."""
        raise NotImplementedError

    # Gymnasium's interface

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode in each environment.

        Args:
            seed: of the first environment, those of the others follow; or a list with one for each, or None.
            options: passed to the ``reset`` of environments that are Gymnasium's. ``{"reset_mask": mask}``, an array of booleans,
                names those that begin; the others stay where they are.
        """
        if self.closed:
            raise closed_before("reset")
        envs, options = self._masked(options)
        seeds = self._seeds(seed)
        observation, notes = self._begin(envs, [seeds[env] for env in envs], options)
        return observation, self._told(notes)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments: observations, rewards, whether episodes were terminated, whether they were truncated, and ``info``."""
        if self.closed:
            raise closed_before("step")
        *stepped, notes = self._stepped(actions)
        return (*stepped, self._told(notes))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """What the method ``name`` of each environment returns, or its attribute of this name."""
        return tuple(self._called(range(self.num_envs), name, args, kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute ``name`` of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets the attribute ``name`` of each environment: to ``values``, or to its own of a list or tuple.

        Raises:
            ValueError: there is another number of values.
        """
        given = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(given) != self.num_envs:
            raise ValueError(f"expected a value for each of {self.num_envs} environments, or one that is no list, got {len(given)}")
        self._set(range(self.num_envs), name, given)

    def render(self) -> tuple[Any, ...] | None:
        """The picture of each environment."""
        return self.call("render")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each environment's generator."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generator of each environment."""
        return self.get_attr("np_random")

    # Arguments and results

    def _seeds(self, seed: Any) -> list[int | None]:
        """A seed or None for each environment."""
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (list, tuple, np.ndarray)):
            if len(seed) != self.num_envs:
                raise ValueError(f"expected a seed or None for each of {self.num_envs} environments, got {len(seed)}")
            return [None if one is None else operator.index(one) for one in seed]
        return list(range(first := operator.index(seed), first + self.num_envs))

    def _masked(self, options: dict[str, Any] | None) -> tuple[list[int], dict[str, Any] | None]:
        """The environments that ``options`` names, and what else is in it."""
        if options is None or "reset_mask" not in options:
            return list(range(self.num_envs)), options
        mask = options["reset_mask"]
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            got = f"of {mask.dtype}" if isinstance(mask, np.ndarray) else type(mask).__name__
            raise TypeError(f'options["reset_mask"]: expected an array of booleans, got {got}')
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f'options["reset_mask"]: expected shape ({self.num_envs},) with one True at least, got {mask.tolist()} of shape {mask.shape}'
            )
        return mask.nonzero()[0].tolist(), {name: value for name, value in options.items() if name != "reset_mask"}

    def _told(self, notes: Notes) -> dict[str, Any]:
        """``info`` as Gymnasium's vectors give it."""
        if (columns := columns_of(notes, self.num_envs)) is not None:
            return with_masks(columns, self.num_envs)
        infos: dict[str, Any] = {}
        for env, info in notes:
            infos = self._add_info(infos, info, env)
        if self._form == "dictionaries" and "final_info" in infos:
            each = np.full(self.num_envs, None, object)
            for env, info in notes:
                if "final_info" in info:
                    each[env] = info["final_info"]
            infos["final_info"] = each
            infos["final_observation"], infos["_final_observation"] = infos["final_obs"], infos["_final_obs"]
        return infos


def columns_of(notes: Notes, num_envs: int) -> dict[str, Any] | None:
    """Arrays of notes that are one for each environment, all with the same entries, which are numbers: as Gymnasium's own way gives them,
    entry by entry instead of value by value. None for others."""
    if len(notes) != num_envs:
        return None
    infos = [info for _, info in notes]
    first = infos[0]
    if any(info.keys() != first.keys() for info in infos) or [env for env, _ in notes] != list(range(num_envs)):
        return None
    columns: dict[str, Any] = {}
    for name, value in first.items():
        kind = type(value)
        values = [info[name] for info in infos]
        if not (kind in _NUMBERS or issubclass(kind, np.number)) or any(type(one) is not kind for one in values):
            return None
        columns[name] = np.array(values, kind)
    return columns


def with_masks(columns: dict[str, Any], num_envs: int) -> dict[str, Any]:
    """``info`` of entries that all environments have."""
    return masked(columns, np.ones(num_envs, np.bool_))


def masked(columns: dict[str, Any], has: np.ndarray) -> dict[str, Any]:
    """``info`` of entries that the environments have of which ``has`` is true."""
    info: dict[str, Any] = {}
    for name, values in columns.items():
        info[name], info[f"_{name}"] = values, has.copy()
    return info


def closed_before(called: str) -> ClosedEnvironmentError:
    return ClosedEnvironmentError(f"{called} was called, but the vector of environments is closed: make another one")
