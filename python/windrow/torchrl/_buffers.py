"""Buffers with parts that only TorchRL has: such a buffer is TorchRL's as a whole."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from windrow._arguments import argument, warn_ignored
from windrow._warnings import warn
from windrow.data._arguments import AnyBufferArguments
from windrow.data._part import Part
from windrow.data.replay_buffers import replay_buffers, writers

_PARTS = ("storage", "sampler", "writer")


#: Arguments that windrow's buffers do not have, each with the values that change nothing.
_FURTHER: dict[str, tuple[Any, ...]] = {
    "sample_unit": (None,),
    "sampler_device": (None, "cpu"),
    "service_backend": (None, "direct"),
    "service_backend_options": (None, {}),
    "sync": (None, True),
    "transport": (None, "auto"),
    "transport_options": (None, {}),
}


class _OfAnyParts(replay_buffers.ReplayBuffer):
    def __new__(cls, *args: Any, **arguments: Any) -> Any:
        foreign = [
            f"{name}={_kind(arguments[name]).__name__}"
            for name in _PARTS
            if _is_foreign(arguments.get(name))
        ]
        foreign += [
            f"{name}={arguments[name]!r}"
            for name, known in _FURTHER.items()
            if arguments.get(name) not in known
        ]
        if not foreign:
            return super().__new__(cls)
        if cls.__module__ != __name__:
            raise TypeError(
                f"expected what windrow.data has in a class derived from {cls.__name__}, got {foreign[0]}"
            )
        warn(f"windrow has no {' and no '.join(foreign)}: this {cls.__name__} is TorchRL's")
        theirs = getattr(importlib.import_module("torchrl.data"), cls.__name__)
        return theirs(*args, **{name: as_torchrl(value) for name, value in arguments.items()})

    def __init__(self, *args: Any, **arguments: Any) -> None:
        super().__init__(
            *args, **{name: value for name, value in arguments.items() if name not in _FURTHER}
        )

    def _begin(self, arguments: AnyBufferArguments) -> None:
        super()._begin(arguments)
        warn_ignored(
            "track_generations",
            getattr(self.writer, "track_generations", False),
            False,
            "frames have no generations",
        )

    def stats(self) -> dict[str, Any]:
        """Counts under windrow's names, and the number of frames under TorchRL's, ``"size"``."""
        stats = super().stats()
        return {"size": stats["frames"], **stats}


class ReplayBuffer(_OfAnyParts):
    __doc__ = replay_buffers.ReplayBuffer.__doc__
    __signature__ = inspect.signature(replay_buffers.ReplayBuffer)


class TensorDictReplayBuffer(_OfAnyParts, replay_buffers.TensorDictReplayBuffer):
    __doc__ = replay_buffers.TensorDictReplayBuffer.__doc__
    __signature__ = inspect.signature(replay_buffers.TensorDictReplayBuffer)


class PrioritizedReplayBuffer(_OfAnyParts, replay_buffers.PrioritizedReplayBuffer):
    __doc__ = replay_buffers.PrioritizedReplayBuffer.__doc__
    __signature__ = inspect.signature(replay_buffers.PrioritizedReplayBuffer)


class TensorDictPrioritizedReplayBuffer(
    _OfAnyParts, replay_buffers.TensorDictPrioritizedReplayBuffer
):
    __doc__ = replay_buffers.TensorDictPrioritizedReplayBuffer.__doc__
    __signature__ = inspect.signature(replay_buffers.TensorDictPrioritizedReplayBuffer)


class RoundRobinWriter(writers.RoundRobinWriter):
    __doc__ = writers.RoundRobinWriter.__doc__

    track_generations: bool = argument(
        "for a buffer of TorchRL alone: frames of windrow's have no generations", default=False
    )


class TensorDictRoundRobinWriter(RoundRobinWriter):
    __doc__ = writers.TensorDictRoundRobinWriter.__doc__


def as_torchrl(value: object) -> object:
    """A part of a buffer as TorchRL's of the same name, or what makes it; anything else as it
    is.
    """
    if isinstance(value, type) and issubclass(value, Part):
        return _theirs(value)
    if (
        isinstance(value, functools.partial)
        and isinstance(value.func, type)
        and issubclass(value.func, Part)
    ):
        return functools.partial(_theirs(value.func), *value.args, **value.keywords)
    if not isinstance(value, Part):
        return value
    said = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    defaults = {field.name: field.default for field in dataclasses.fields(value)}
    return _theirs(type(value))(
        **{
            name: given
            for name, given in said.items()
            if given is not defaults[name] and given != defaults[name]
        }
    )


def _theirs(part: type[Part]) -> Callable[..., Any]:
    return getattr(importlib.import_module("torchrl.data"), part.__name__)


def _kind(part: object) -> type:
    """The class of a part, or of what a function without arguments makes, as far as that is
    known.
    """
    made = part.func if isinstance(part, functools.partial) else part
    return made if isinstance(made, type) else type(made)


def _is_foreign(part: object) -> bool:
    return part is not None and _kind(part).__module__.partition(".")[0] == "torchrl"
