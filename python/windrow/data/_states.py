"""States of buffers as dictionaries of tensors: by default, ``torch.load`` reads nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windrow._lazy import tensordict
from windrow._values import entry, parted, placed
from windrow.data._content import kind_of

#: Key of the entries of frames that no array holds, by their keys: the shape and the values of
#: each.
VALUES = "values"
#: Key of the batch sizes of nested entries that have more dimensions in common than the frames, by
#: their keys.
SIZES = "batch_sizes"


def to_plain(state: tensordict.TensorDictBase) -> dict[str, Any]:
    """A state of the engine as dictionaries of tensors, and of the objects in frames as they
    are.
    """
    frames = state.get("frames", None)
    if frames is None:
        return dict(state.to_dict())
    frames, entries = parted(frames)
    plain: dict[str, Any] = state.exclude("frames").set("frames", frames).to_dict()
    if entries:
        plain[VALUES] = {
            one.names: (list(one.values.shape), one.values.reshape(-1).tolist(), one.is_tensor)
            for one in entries
        }
    plain[SIZES] = {
        key if isinstance(key, tuple) else (key,): list(inner.batch_size)
        for key, inner in frames.items(include_nested=True)
        if hasattr(inner, "batch_size") and inner.batch_size != frames.batch_size
    }
    return plain


def from_plain(state: object) -> tensordict.TensorDictBase:
    """The state that :func:`to_plain` was given. A TensorDict stays as it is."""
    if isinstance(state, tensordict.TensorDictBase):
        return state
    if not isinstance(state, Mapping):
        raise TypeError(f"expected the state_dict of a buffer, got {kind_of(state)}")
    strange = [name for name in ("rows", "counts", "rng", "sampler") if name not in state]
    if strange:
        found = ", ".join(map(str, state)) or "nothing"
        raise ValueError(
            f"expected the state_dict of a buffer of windrow, with {strange[0]!r}; it has {found}"
        )
    told = {
        name: value
        for name, value in state.items()
        if name not in ("frames", SIZES, "objects", VALUES)
    }
    made = tensordict.TensorDict(told, [])
    if "frames" in state:
        try:
            frames = tensordict.TensorDict(state["frames"], [len(state["rows"])])
            for key, size in state.get(SIZES, {}).items():
                frames.get(key).batch_size = size
        except RuntimeError as error:
            raise ValueError(
                f"expected {len(state['rows'])} frames in the state_dict, as many as rows: {error}"
            ) from error
        values = state.get(VALUES, {}).items()
        made.set("frames", placed(frames, [entry(names, *held) for names, held in values]))
    return made
