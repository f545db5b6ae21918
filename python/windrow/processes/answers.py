"""In a worker process, answers to what the collector's process asks of an environment, see
:mod:`windrow.processes.proxy`.
"""

from __future__ import annotations

import pickle
import types
from types import ModuleType
from typing import Any

from windrow import _fence
from windrow.collectors import _env_states, _statistics
from windrow.envs._factory import Factory, env_of
from windrow.processes import setup
from windrow.processes.exceptions import sent
from windrow.processes.pickling import dumps

#: Objects of these modules are sent as copies; of any other class, what is asked of them is asked
#: where they are.
_VALUES = (
    "builtins",
    "gymnasium.spaces",
    "numpy",
    "tensordict",
    "torch",
    f"{_fence.LIBRARY}.data",
    "windrow.envs._specs",
    "collections",
)


def answer(request: bytes) -> bytes:
    """In a worker process, the answer to a question of :class:`windrow.processes.proxy.Remote`:
    whether an exception was raised, and it or what was asked for.
    """
    try:
        return dumps((False, _answered(*pickle.loads(request))))
    except BaseException as error:
        return pickle.dumps((True, sent(error)))


def _answered(verb: str, *arguments: Any) -> Any:
    if verb == "states":
        return _env_states.states_of([setup.worker.environment])
    if verb == "load_states":
        return _env_states.load([setup.worker.environment], *arguments)
    if verb == "dump":
        return _dump(*arguments)
    found = _environment()
    path, given = arguments[0], arguments[1:]
    for kind, name in path:
        found = getattr(found, name) if kind == "attribute" else found[name]
    if verb == "repr":
        return repr(found)
    if verb == "set":
        return setattr(found, *given)
    if verb == "call":
        args, kwargs = given
        return found(*args, **kwargs)
    if _is_value(found):
        return "value", found
    return ("callable" if callable(found) else "object"), None


def _dump(step: int) -> None:
    """Makes the recorders of the environment write what they have recorded."""
    for recorder in _statistics.recorders(_environment()):
        recorder.dump(step=step)


def _environment() -> Any:
    given = setup.worker.environment
    return given.made if isinstance(given, Factory) else env_of(given)


def _is_value(found: object) -> bool:
    if isinstance(
        found, (types.FunctionType, types.MethodType, types.BuiltinFunctionType, ModuleType, type)
    ):
        return False
    if isinstance(found, (list, tuple, set, frozenset)):
        return all(map(_is_value, found))
    if isinstance(found, dict):
        return all(map(_is_value, found.values()))
    module = type(found).__module__
    if hasattr(found, "forward") or hasattr(found, "step"):
        return False
    return any(module == known or module.startswith(f"{known}.") for known in _VALUES)
