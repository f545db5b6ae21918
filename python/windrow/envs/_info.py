"""Entries of ``info``, which environments of Gymnasium return, as observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windrow._keys import Key, path, short
from windrow._lazy import gymnasium, numpy
from windrow._warnings import warn
from windrow.envs._recipe import Entry
from windrow.envs._specs import DTYPES

Wanted = dict[tuple[str, ...], Any]
"""Names, each with something that has the shape and dtype of the entry, or None."""

#: Element types that batches hold in a wider one.
_WIDER = {"float16": "float32", "uint16": "int32", "uint32": "int64", "uint64": "int64"}

#: What other entries of a batch are called.
_TAKEN = {"action", "collector", "done", "next", "reward", "terminated", "truncated"}

#: What vectors return beside the entries of their environments.
_FINAL = {"final_obs", "final_observation"}


def wanted(info_keys: Sequence[Key] | Mapping[Key, Any]) -> Wanted:
    """``info_keys`` as an argument gives them."""
    if isinstance(info_keys, str):
        raise TypeError(
            f"info_keys must be a list of names or a dictionary, got {info_keys!r}: write [{info_keys!r}]"
        )
    given = info_keys if isinstance(info_keys, Mapping) else dict.fromkeys(info_keys)
    found = {path(key): spec for key, spec in given.items()}
    for names in found:
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"info_keys: expected a name or a tuple of names, got {names!r}")
        if names[0] in _TAKEN:
            raise ValueError(f"info_keys: batches have another entry called {names[0]!r}")
    return found


def entries(wanted: Wanted | None, seen: Mapping[tuple[str, ...], Any]) -> list[Entry]:
    """Each entry that is wanted, as its spec says or as it was ``seen``; a number (``float32``)
    where neither tells. All that were seen and are numbers, where ``wanted`` is None.
    """
    if wanted is None:
        all_seen = [_entry(names, value) for names, value in seen.items() if names[0] not in _TAKEN]
        return [entry for entry in all_seen if entry is not None]
    found = []
    for names, spec in wanted.items():
        like = seen.get(names) if spec is None else spec
        entry = (short(names), "float32", ()) if like is None else _entry(names, like)
        if entry is None:
            raise TypeError(
                f"the entry {short(names)!r} of info cannot be observed: expected numbers, got {like!r}"
            )
        found.append(entry)
    return found


def _entry(names: tuple[str, ...], like: Any) -> Entry | None:
    """An entry with the shape of ``like``, and with the element type that batches hold it in; None
    where they cannot.
    """
    if isinstance(like, (str, bytes, Mapping)) or like is None:
        return None
    if not (hasattr(like, "shape") and hasattr(like, "dtype")):
        try:
            like = numpy.asarray(like)
        except ValueError:
            return None
    name = str(like.dtype).removeprefix("torch.")
    name = _WIDER.get(name, name)
    return (short(names), name, tuple(int(size) for size in like.shape)) if name in DTYPES else None


def seen_in_a_step(env: Any) -> dict[tuple[str, ...], Any]:
    """What an environment or a vector returns in ``info`` when it is reset and in a step with
    random actions: an entry of the reset stands where the step has none.
    """
    _, first = env.reset()
    *_, then = env.step(env.action_space.sample())
    is_vector = isinstance(env, gymnasium.vector.VectorEnv)
    return {**_leaves(first, is_vector), **_leaves(then, is_vector)}


def _leaves(info: object, is_vector: bool) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    if isinstance(info, Mapping):
        for name, value in info.items():
            if not isinstance(name, str) or name.startswith("_") or name in _FINAL:
                continue
            if isinstance(value, Mapping):
                found.update(
                    {(name, *names): leaf for names, leaf in _leaves(value, is_vector).items()}
                )
            else:
                found[name,] = _first(value) if is_vector else value
    return found


def _first(values: Any) -> object:
    """The value of the first environment that has one."""
    try:
        return next((value for value in values if value is not None), None)
    except TypeError:
        return values


_told: set[tuple[str, str]] = set()


def tell_of_the_rest(env: str, info: dict[Any, Any]) -> None:
    """Says which entries of ``info`` batches leave out: once for each environment and entry."""
    found = (names[1:] if names[0] == "final_info" else names for names in _leaves(info, False))
    new = [
        name
        for name in (repr(short(names)) for names in found if names)
        if (env, name) not in _told
    ]
    if new:
        _told.update((env, name) for name in new)
        warn(
            f"{env} returns what batches leave out, in info: {', '.join(new)}. GymEnv and GymWrapper observe what their "
            "argument info_keys names"
        )
