"""In a worker process, answers to what the collector's process asks of an environment, see
:mod:`windrow.processes.proxy`.
"""

from __future__ import annotations

import pickle
from typing import Any

from windrow._codecs import codec, own_codec
from windrow.collectors import _env_states, _statistics
from windrow.envs._factory import Factory
from windrow.envs.libs.gym import env_of
from windrow.processes import setup
from windrow.processes.broadcast import attribute_of, is_value


def answer(request: bytes) -> bytes:
    """In a worker process, the answer to a question of :class:`windrow.processes.proxy.Remote`:
    whether an exception was raised, and it or what was asked for.
    """
    try:
        asked = pickle.loads(request)
        is_raised, sent = False, own_codec().write(_answered(*asked), _names(*asked))
    except BaseException as error:
        is_raised, sent = True, own_codec().write_error(error)
    return codec(False).write((is_raised, sent))


def _names(verb: str, *arguments: Any) -> list[str]:
    """The path to the requested object, as names for messages."""
    return [str(name) for _, name in arguments[0]] if verb in ("get", "call") else []


def _answered(verb: str, *arguments: Any) -> Any:
    if verb == "states":
        return _env_states.states_of([setup.worker.environment])
    if verb == "load_states":
        return _env_states.load([setup.worker.environment], *arguments)
    if verb == "dump":
        return _statistics.dump(_environment(), *arguments)
    path, given = arguments[0], arguments[1:]
    found = _environment()
    for kind, name in path:
        if kind == "env":
            found = setup.worker.environment.made_together[name]
        else:
            found = attribute_of(found, name) if kind == "attribute" else found[name]
    if verb == "repr":
        return repr(found)
    if verb == "set":
        return setattr(found, *given)
    if verb == "call":
        args, kwargs = given
        return found(*args, **kwargs)
    if is_value(found):
        return "value", found
    return ("callable" if callable(found) else "object"), None


def _environment() -> Any:
    given = setup.worker.environment
    return given.made if isinstance(given, Factory) else env_of(given)
