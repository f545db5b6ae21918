"""Buffers that keep TorchRL's word. One with a part that only TorchRL has is TorchRL's as a
whole.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from windrow._arguments import argument
from windrow._lazy import tensordict, torch
from windrow._warnings import warn
from windrow.data._content import is_frames
from windrow.data._items import OBJECT
from windrow.data._part import Key, Part
from windrow.data.replay_buffers import replay_buffers, samplers, writers

_PARTS = ("storage", "sampler", "writer")
#: The folder of what save hooks make, which TorchRL's buffers have, too.
_HOOKED = "storage"


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
    #: The part of a name that the buffer makes itself, unless it is another kind of part.
    _made: ClassVar[dict[str, type[Part]]] = {}

    def __new__(cls, *args: Any, **arguments: Any) -> Any:
        foreign = [
            f"{name}={_shown(arguments[name])}"
            for name in _PARTS
            if _is_foreign(arguments.get(name), cls._made.get(name))
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
        beside = " beside hindsight" if cls._made else ""
        warn(f"windrow has no {' and no '.join(foreign)}{beside}: this {cls.__name__} is TorchRL's")
        theirs = getattr(importlib.import_module("torchrl.data"), cls.__name__)
        return theirs(*args, **{name: as_torchrl(value) for name, value in arguments.items()})

    def __init__(self, *args: Any, **arguments: Any) -> None:
        #: Called in turn with all frames before they are saved, and with what was loaded.
        self._save_hooks: list[Callable[..., Any]] = []
        self._load_hooks: list[Callable[..., Any]] = []
        super().__init__(
            *args, **{name: value for name, value in arguments.items() if name not in _FURTHER}
        )

    def stats(self) -> dict[str, Any]:
        """Counts under windrow's names, and the number of frames under TorchRL's, ``"size"``."""
        stats = super().stats()
        return {"size": stats["frames"], **stats}

    def update_if_present(self, **_: object) -> NoReturn:
        """Refuses to change what frames of this buffer hold by their generations.

        Raises:
            RuntimeError: always; a buffer that was made with ``track_generations=True`` is
                TorchRL's, and does it.
        """
        raise RuntimeError(
            f"this {type(self).__name__} does not track generations: make it with writer=RoundRobinWriter(track_generations=True)"
        )

    submit_update_if_present = update_if_present

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Lets :meth:`dumps` write what ``hook`` makes of the frames, such as ``TED2Flat()``, in
        place of a checkpoint.

        Args:
            hook: called with the frames ``[frames]``, the oldest first, and ``path=``, the folder
                for what it returns, a ``TensorDict`` of any shape. Its attributes ``shift`` and
                ``is_full``, if it has them, become the number of frames and True.
        """
        self._save_hooks.append(hook)

    def register_load_hook(self, hook: Callable[..., Any]) -> None:
        """Lets :meth:`loads` read what :meth:`dumps` of a buffer with save hooks has written, and
        replace all frames by what ``hook`` makes of it, such as ``Flat2TED()``.

        Args:
            hook: called with the ``TensorDict`` that was saved, and ``out=None``; returns frames,
                the oldest first.
        """
        self._load_hooks.append(hook)

    def dumps(self, path: str | Path) -> None:
        """Writes a checkpoint into the folder ``path``; with save hooks, what they make of the
        frames into its folder ``storage``, and nothing else.

        Raises:
            RuntimeError: there are no frames, or what is there is no frames; as in a buffer without
                hooks.
        """
        if not self._save_hooks:
            return super().dumps(path)
        with self._objects:
            frames: Any = self._checked.state_dict().get("frames")
        if frames is None or not is_frames(frames) or OBJECT in frames.keys():
            raise RuntimeError("save hooks need TensorDicts of numbers, got none in this buffer")
        folder = Path(path) / _HOOKED
        # Frames are in order, as if the last of all rows had been written last. Of rows that are
        # not full, TorchRL's hooks lose the last observation.
        for hook in self._save_hooks:
            for name, value in (("shift", len(frames)), ("is_full", True)):
                if hasattr(hook, name):
                    setattr(hook, name, value)
            frames = hook(frames, path=folder)
        if frames.saved_path is None or Path(frames.saved_path).absolute() != folder.absolute():
            frames = frames.memmap(folder)
        frames.memmap_refresh_()

    def loads(self, path: str | Path) -> None:
        """Reads a checkpoint; with load hooks, what a buffer with save hooks has written.

        Raises:
            FileNotFoundError: there is none.
        """
        if not self._load_hooks:
            return super().loads(path)
        loaded: Any = tensordict.TensorDict.load_memmap(Path(path) / _HOOKED)
        for hook in self._load_hooks:
            loaded = hook(loaded, out=None)
        self.empty()
        # As they were saved: transforms saw them before.
        self._put(self._packed(loaded, 1), self._core.extend)

    save, dump, load = dumps, dumps, loads


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


class _Hindsight(samplers.HERSampler):
    """TorchRL reads the goals that were achieved at the root."""

    _achieved_in = ()


class HERReplayBuffer(_OfAnyParts, replay_buffers.TensorDictReplayBuffer):
    """A :class:`TensorDictReplayBuffer` that gives a share of each sample the goals that its
    trajectories reached later.

    It has a :class:`windrow.data.HERSampler`, which reads the goals that were achieved at the root
    of the frames, as TorchRL's buffer does, and not under ``"next"``. With another sampler it is
    TorchRL's, which a warning says.

    Args:
        reward_fn: takes the frames with new goals, ``[frames]``, and returns a reward for each.
        her_ratio: the share of a sample that gets new goals, from 0 to 1.
        strategy: the frames that goals are taken from: ``"future"``, ``"final"``, ``"episode"`` or
            ``"random"``, or a ``HindsightStrategy``.
        goal_key: the goal that is desired.
        achieved_goal_key: the goal that is achieved.
        reward_key: the reward.
        end_key: the flag that ends an episode.
        sampler: None or a :class:`RandomSampler`.
        arguments: those of :class:`TensorDictReplayBuffer`.

    Raises:
        TypeError: ``reward_fn`` is no function; an argument is unknown.
        ValueError: the strategy is unknown, or the share is none.
    """

    _made = {"sampler": samplers.RandomSampler}

    def __init__(
        self,
        reward_fn: Callable[[Any], torch.Tensor],
        *,
        her_ratio: float = 0.8,
        strategy: Any = "future",
        goal_key: Key = "desired_goal",
        achieved_goal_key: Key = "achieved_goal",
        reward_key: Key = ("next", "reward"),
        end_key: Key = ("next", "done"),
        sampler: Any = None,
        **arguments: Any,
    ) -> None:
        hindsight = _Hindsight(
            reward_fn,
            her_ratio=her_ratio,
            strategy=getattr(strategy, "value", strategy),
            goal_key=goal_key,
            achieved_goal_key=achieved_goal_key,
            reward_key=reward_key,
            end_key=end_key,
        )
        super().__init__(sampler=hindsight, **arguments)


class RoundRobinWriter(writers.RoundRobinWriter):
    __doc__ = writers.RoundRobinWriter.__doc__

    track_generations: bool = argument(
        "count how often each row was written; the buffer is then TorchRL's", default=False
    )

    def generations_of(self, index: object) -> torch.Tensor:
        """-1 for each row of ``index``, ``int64``: generations are not tracked."""
        return torch.full_like(torch.as_tensor(index), -1, dtype=torch.int64)


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


def _is_foreign(part: object, made: type[Part] | None) -> bool:
    """Whether TorchRL alone has the ``part``, or its buffer alone takes it: windrow's makes another
    in place of one of the kind ``made``.
    """
    if part is None:
        return False
    kind = _kind(part)
    return (
        kind.__module__.partition(".")[0] == "torchrl"
        or _tracks_generations(part)
        or (made is not None and kind is not made)
    )


def _tracks_generations(part: object) -> bool:
    given = part.keywords if isinstance(part, functools.partial) else vars(part)
    return bool(given.get("track_generations"))


def _shown(part: object) -> str:
    of = "(track_generations=True)" if _tracks_generations(part) else ""
    return f"{_kind(part).__name__}{of}"
