"""Statistics that environments gather as they are stepped, such as those that observations are
normalised with.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from windrow import _fence
from windrow._lazy import torch
from windrow._windrow import Statistics
from windrow.envs._base import EnvBase
from windrow.envs._factory import Factory, is_function
from windrow.envs._transform import Transform
from windrow.envs._vec_norm import Running
from windrow.envs._video import Video

if TYPE_CHECKING:
    from tensordict import TensorDictBase


def frozen(make: Callable[..., Any]) -> Callable[..., Any]:
    """``make``, whose environments then use statistics, but gather none."""

    def made(**arguments: Any) -> object:
        env = make(**arguments)
        freeze(env)
        return env

    return made


class FrozenFactory(Factory):
    """A factory whose environments use statistics, but gather none."""

    def __call__(self, **arguments: Any) -> object:
        made = super().__call__(**arguments)
        freeze(made)
        return made


def freeze(env: object) -> list[Callable[[], None]]:
    """Keeps ``env`` from gathering statistics; it goes on to use those it has or shares. Knows
    ``VecNorm``, also that of TorchRL, and wrappers of Gymnasium with ``update_running_mean``.

    Returns:
        Functions that let it gather again.
    """
    undo: list[Callable[[], None]] = []
    for part in _parts(env):
        if _is_several(part):
            # It may have asked for the recipes of others before.
            part._source = None
        if isinstance(part, Running):
            # A recipe says that its environments gather nothing; others that share the statistics
            # go on.
            part._evaluates = True
            undo.append(partial(setattr, part, "_evaluates", False))
        elif _is_several(part) and any(map(is_function, part._makers)):
            undo.append(partial(_set_makers, part, part._makers))
            _set_makers(
                part, [frozen(make) if is_function(make) else make for make in part._makers]
            )
        elif getattr(type(part), "update_running_mean", None) is not None:
            if part.update_running_mean:
                part.update_running_mean = False
                undo.append(partial(setattr, part, "update_running_mean", True))
        elif hasattr(type(part), "unfreeze") and not part.frozen:
            part.freeze()
            undo.append(part.unfreeze)
            if hasattr(type(part), "_stateful_norm"):
                part._norm = partial(_normed, part)
                undo.append(partial(delattr, part, "_norm"))
    return undo


def _normed(
    part: Any, data: TensorDictBase, loc: TensorDictBase, var: TensorDictBase, count: TensorDictBase
) -> TensorDictBase:
    """``data`` as ``part``, a ``VecNormV2`` of TorchRL, normalises it; unchanged where it has seen
    none before, since it would divide by zero.
    """
    if not any(bool((number > 0).any()) for number in count.values(True, True)):
        loc, var, count = (
            loc.apply(torch.zeros_like),
            var.apply(torch.ones_like),
            count.apply(lambda it: torch.full_like(it, 1 << 40)),
        )
    return type(part)._norm(part, data, loc, var, count)


def thaw_recipes(env: object) -> None:
    """Makes recipes of ``env`` that are taken from now on gather statistics again."""
    for part in _parts(env):
        if _is_several(part):
            part._source = None
        elif isinstance(part, Running):
            part._evaluates = False


def has_gathered(env: object) -> bool:
    """Whether the transforms of ``env`` of windrow have all statistics that they gather."""
    return all(
        part._statistics.read() is not None for part in _parts(env) if isinstance(part, Running)
    )


def share(env: object, statistics: Statistics) -> None:
    """Makes ``env`` of windrow gather statistics in ``statistics``, each of its transforms in a
    part of its own.
    """
    for number, part in enumerate(part for part in _parts(env) if isinstance(part, Running)):
        part._statistics = statistics.section(number)


def recorders(env: object) -> list[Any]:
    """The parts of ``env`` with a method that writes their recordings, such as ``VideoRecorder`` of
    TorchRL, and transforms with a ``dump(step=...)`` of their own. A ``Compose`` of them that has
    one tells those in it.
    """
    found = [part for part in _parts(env) if _records(part)]
    told = {id(inner) for part in found for inner in getattr(part, "transforms", ())}
    return [part for part in found if id(part) not in told]


def dump(env: object, step: int) -> None:
    """Lets the recorders of an environment write what they have recorded."""
    for recorder in recorders(env):
        recorder.dump(step=step)


def _records(part: object) -> bool:
    dump = getattr(type(part), "dump", None)
    if dump is None:
        return False
    if not _fence.is_a(part, "Transform"):
        return hasattr(part, "logger") or isinstance(part, Video)
    theirs = _fence.loaded("envs")
    if dump in (theirs.Transform.dump, theirs.Compose.dump):
        return False
    parameters = inspect.signature(dump).parameters.values()
    return any(
        parameter.name == "step" or parameter.kind is parameter.VAR_KEYWORD
        for parameter in parameters
    )


def _set_makers(env: Any, makers: list[Any]) -> None:
    env._makers, env._source = makers, None


def _is_several(part: Any) -> bool:
    return isinstance(part, EnvBase) and "_makers" in vars(part)


def _parts(env: object) -> Iterator[Any]:
    """``env`` and its parts, each once."""
    seen: dict[int, Any] = {}
    left = [env]
    while left:
        part = left.pop()
        if id(part) not in seen:
            seen[id(part)] = part
            yield part
            left += _inside(part)


def _inside(part: Any) -> list[Any]:
    if _is_several(part):
        return [make for make in part._makers if not is_function(make)]
    if isinstance(part, (EnvBase, Transform)):
        inside = [
            vars(part)[name]
            for name in ("base_env", "_name", "_env", "_video")
            if name in vars(part)
        ]
        return [*inside, *vars(part).get("_transforms", ())]
    # An object of a library is there only if the library was imported. Others are not asked: they
    # may start a process for it.
    if _fence.is_a(part, "TransformedEnv"):
        return [part.transform, part.base_env]
    if _fence.is_a(part, "Compose"):
        return list(part.transforms)
    if _fence.is_a(part, "EnvBase") and isinstance(part, _fence.loaded("envs.common")._EnvWrapper):
        return [part._env]
    if "gymnasium" in sys.modules:
        import gymnasium

        if isinstance(part, (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)):
            return [part.env, *(vars(part)[name] for name in ("_video",) if name in vars(part))]
        if isinstance(part, gymnasium.vector.SyncVectorEnv):
            return list(part.envs)
    return []
