"""What all vectors of windrow have in common."""

from __future__ import annotations

import operator
import pickle
import struct
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from windrow.processes.broadcast import value_of_each

Notes = list[tuple[int, dict[str, Any]]]
"""What environments have to say beside their observations, in the order in which it joins ``info``:
the environment and its ``info``. Of one that has ended and begun anew in the same step, first
``"final_obs"`` and ``"final_info"``, then what its reset returned.
"""

Stepped = tuple[Any, Any, Any, Any, Notes]
"""Observations, rewards, flags of terminated episodes, flags of truncated episodes, and notes."""

#: Types of Python's whose values Gymnasium keeps in arrays of numbers.
_NUMBERS = (int, float, bool)
#: How numbers of each element type are packed.
_CODES = {
    "f8": "d",
    "f4": "f",
    "f2": "e",
    "i8": "q",
    "i4": "i",
    "i2": "h",
    "i1": "b",
    "u8": "Q",
    "u4": "I",
    "u2": "H",
    "u1": "B",
    "b1": "?",
}

#: The forms of ``info["final_info"]``.
FORMS = ("arrays", "dictionaries")


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector of environments that windrow steps, made by :func:`windrow.make_vec`.

    Observations, rewards and flags are arrays over memory that is used again once nobody holds
    them: what you keep, an array, a slice of one or a tensor over one, never changes.

    Attributes:
        autoreset_mode: when an environment begins another episode.
    """

    #: See :func:`windrow.envs._vectors.habits`.
    _is_as_gymnasiums = True

    def __init__(
        self,
        num_envs: int,
        observed: Any,
        acted: Any,
        mode: AutoresetMode,
        metadata: dict[str, Any],
        form: str = "arrays",
    ) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observed, acted
        self.observation_space, self.action_space = (
            batch_space(observed, num_envs),
            batch_space(acted, num_envs),
        )
        self.autoreset_mode = mode
        self.metadata = {**metadata, "autoreset_mode": mode}
        self._form = form

    # What kinds of vectors do in their own ways

    def _begin(
        self, envs: list[int], seeds: list[int | None], options: dict[str, Any] | None
    ) -> tuple[Any, Notes]:
        """Begins an episode in each of ``envs``, with its seed: the observations of all, and
        notes.
        """
        raise NotImplementedError

    def _stepped(self, actions: Any) -> Stepped:
        """Steps all environments."""
        raise NotImplementedError

    def _called(
        self,
        envs: Sequence[int],
        name: str,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """What the method ``name`` of each of ``envs`` returns, or its attribute of this name."""
        raise NotImplementedError

    def _set(self, envs: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Sets an attribute of each of ``envs``."""
        raise NotImplementedError

    def _are_wrapped(self, envs: Sequence[int], wrapper: type) -> list[bool]:
        """Whether each of ``envs`` has this wrapper of Gymnasium's around it."""
        raise NotImplementedError

    # Gymnasium's interface

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode in each environment.

        Args:
            seed: of the first environment, those of the others follow; or a list with one for each,
                or None.
            options: passed to the ``reset`` of environments that are Gymnasium's.
                ``{"reset_mask": mask}``, an array of booleans, names those that begin; the others
                stay where they are.
        """
        if self.closed:
            raise closed_before("reset")
        envs, options = self._masked(options)
        seeds = self._seeds(seed)
        observation, notes = self._begin(envs, [seeds[env] for env in envs], options)
        return observation, self._told(notes)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments: observations, rewards, whether episodes were terminated, whether
        they were truncated, and ``info``.
        """
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
        """Sets the attribute ``name`` of each environment: to ``values``, or to its own of a list
        or tuple.

        Raises:
            ValueError: there is another number of values.
        """
        self._set(range(self.num_envs), name, value_of_each(values, self.num_envs))

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
                raise ValueError(
                    f"expected a seed or None for each of {self.num_envs} environments, got {len(seed)}"
                )
            return [None if one is None else _seed(one) for one in seed]
        return list(range(first := _seed(seed), first + self.num_envs))

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
        return mask.nonzero()[0].tolist(), {
            name: value for name, value in options.items() if name != "reset_mask"
        }

    def _told(self, notes: Notes) -> dict[str, Any]:
        """``info`` as Gymnasium's vectors give it."""
        if (found := columns_of(notes, self.num_envs)) is not None:
            columns, packed = found
            return with_masks(columns.arrays([packed]), self.num_envs)
        infos: dict[str, Any] = {}
        for env, info in notes:
            infos = self._add_info(infos, info, env)
        if self._form == "dictionaries" and "final_info" in infos:
            each = np.full(self.num_envs, None, object)
            for env, info in notes:
                if "final_info" in info:
                    each[env] = info["final_info"]
            infos["final_info"] = each
            infos["final_observation"], infos["_final_observation"] = (
                infos["final_obs"],
                infos["_final_obs"],
            )
        return infos


class Columns:
    """Entries of ``info`` that all environments have as numbers, each entry of one type: as arrays,
    which are what Gymnasium's own way gives, and packed for another process, entry after entry.

    Attributes:
        names: of the entries.
        head: what precedes packed values. No pickle begins as it does.
    """

    def __init__(self, names: tuple[str, ...], kinds: tuple[type, ...], num_envs: int) -> None:
        self.names, self._num_envs = names, num_envs
        self._types = [kind for kind in kinds for _ in range(num_envs)]
        #: Whether values are NumPy's own scalars, which differ from Python's where nobody makes
        #: arrays of them.
        self._are_numpys = [issubclass(kind, np.generic) for kind in kinds]
        self._dtypes = [np.dtype(kind) for kind in kinds]
        self._is_uniform = len(set(self._dtypes)) == 1
        codes = [_CODES[dtype.str[1:]] for dtype in self._dtypes]
        self._struct = struct.Struct("=" + "".join(f"{num_envs}{code}" for code in codes))
        described = pickle.dumps((names, kinds, num_envs))
        self.head = b"\0" + struct.pack("=I", len(described)) + described

    def packed(self, infos: Sequence[dict[str, Any]]) -> bytes | None:
        """The values of ``infos``; None where one has other entries, or values of other types."""
        if any(len(info) != len(self.names) for info in infos):
            return None
        try:
            values = [info[name] for name in self.names for info in infos]
            return self._struct.pack(*values) if list(map(type, values)) == self._types else None
        except (KeyError, struct.error):
            return None

    def arrays(self, packed: Sequence[bytes], start: int = 0) -> dict[str, Any]:
        """An array for each entry, of the environments of all parts in ``packed``, whose values
        begin at ``start``.
        """
        if self._is_uniform:
            shape = (len(self.names), self._num_envs)
            parts = [
                np.frombuffer(part, self._dtypes[0], offset=start).reshape(shape) for part in packed
            ]
            return dict(zip(self.names, np.concatenate(parts, axis=1), strict=True))
        columns = {}
        for name, dtype in zip(self.names, self._dtypes, strict=True):
            columns[name] = np.concatenate(
                [np.frombuffer(part, dtype, self._num_envs, start) for part in packed]
            )
            start += dtype.itemsize * self._num_envs
        return columns

    def infos(self, packed: bytes, start: int = 0) -> list[dict[str, Any]]:
        """The ``info`` of each environment, as it was packed."""
        columns = self.arrays([packed], start).values()
        values = [
            column if is_numpys else column.tolist()
            for column, is_numpys in zip(columns, self._are_numpys, strict=True)
        ]
        return [dict(zip(self.names, one, strict=True)) for one in zip(*values, strict=True)]


@lru_cache(256)
def _columns(names: tuple[str, ...], kinds: tuple[type, ...], num_envs: int) -> Columns | None:
    """Columns of these entries; None where some are no numbers."""

    def is_packed(kind: type) -> bool:
        return kind in _NUMBERS or (
            issubclass(kind, np.number)
            and np.dtype(kind).type is kind
            and np.dtype(kind).str[1:] in _CODES
        )

    are_plain = all(type(name) is str for name in names) and all(map(is_packed, kinds))
    return Columns(names, kinds, num_envs) if are_plain else None


def columns_of(notes: Notes, num_envs: int) -> tuple[Columns, bytes] | None:
    """Notes that are one for each environment, all with the same entries, which are numbers; None
    for others.
    """
    if len(notes) != num_envs or any(env != number for number, (env, _) in enumerate(notes)):
        return None
    infos = [info for _, info in notes]
    first = infos[0]
    columns = _columns(tuple(first), tuple(map(type, first.values())), num_envs)
    packed = None if columns is None else columns.packed(infos)
    return None if columns is None or packed is None else (columns, packed)


@lru_cache(256)
def _described(head: bytes) -> Columns:
    return Columns(*pickle.loads(head[5:]))


def columns_in(note: bytes) -> Columns | None:
    """The columns of a note that begins with their :attr:`~Columns.head`; None for another."""
    if not note.startswith(b"\0"):
        return None
    return _described(note[: 5 + int.from_bytes(note[1:5], sys.byteorder)])


def with_masks(columns: dict[str, Any], num_envs: int) -> dict[str, Any]:
    """``info`` of entries that all environments have."""
    return masked(columns, np.ones(num_envs, np.bool_))


def masked(columns: dict[str, Any], has: np.ndarray) -> dict[str, Any]:
    """``info`` of entries that the environments have of which ``has`` is true."""
    info: dict[str, Any] = {}
    masks = np.repeat(has[None], len(columns), 0)
    for (name, values), mask in zip(columns.items(), masks, strict=True):
        info[name], info[f"_{name}"] = values, mask
    return info


def _seed(seed: Any) -> int:
    if (number := operator.index(seed)) < 0:
        raise ValueError(f"seed must be 0 or more, got {seed}")
    return number


def closed_before(called: str) -> ClosedEnvironmentError:
    return ClosedEnvironmentError(
        f"{called} was called, but the vector of environments is closed: make another one"
    )


def reset_needed(envs: list[int]) -> ResetNeeded:
    return ResetNeeded(
        f"the episodes of environments {envs} have ended. With autoreset_mode DISABLED, begin new ones before the next step: "
        'call reset(options={"reset_mask": terminated | truncated})'
    )


def refuse_unlike(
    number: int, expected: tuple[Any, Any], got: tuple[Any, Any], first: int = 0
) -> None:
    """Checks that environment ``number`` has the spaces of environment ``first``: those of
    observations and of actions.

    Raises:
        RuntimeError: one of them differs.
    """
    for name, its, own in zip(("observation_space", "action_space"), expected, got, strict=True):
        if its != own:
            raise RuntimeError(
                f"environment {number}: expected the {name} of environment {first}, {its}, got {own}"
            )
