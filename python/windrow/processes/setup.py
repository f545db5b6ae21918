"""What a worker process is sent before it works: environments, a policy, and what both expect of
the process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

from windrow import _codecs
from windrow._warnings import Warning
from windrow._windrow import tensors_to_bytes
from windrow.envs import _convert
from windrow.envs._factory import Factory, is_function
from windrow.envs._recipe import Parallel, Recipe
from windrow.processes.blame import pickled
from windrow.processes.pickling import Door, Unsendable, dumps

#: Counts the environments in processes of this program.
_MADE = itertools.count()

MEMBER = Door("ParallelEnv", instead="take SerialEnv")
"""How errors name environments that step side by side."""

worker = types.SimpleNamespace(environment=None, is_process=False)
"""The environments of this process if it is a worker process (``is_process``): as the user gave
them, or the factory that has made them.
"""


class _Sending:
    """The environments whose copies processes have, by their identities."""

    def __init__(self) -> None:
        self.gifts: dict[int, _convert.Gift] = {}

    def keep(self) -> None:
        """Leaves the environments open, since no process acts for them."""
        for gift in self.gifts.values():
            # It has nothing to close any more.
            gift()
        self.gifts.clear()


_sending: ContextVar[_Sending | None] = ContextVar("_sending", default=None)


@contextlib.contextmanager
def sending() -> Iterator[_Sending]:
    """A context in which the same environments may be sent several times, until what they are sent
    for is built. Those of the program are closed at its end, unless there was an error.
    """
    ours = _Sending()
    before = _sending.set(ours)
    try:
        yield ours
        ours.gifts.clear()
    except BaseException:
        ours.keep()
        raise
    finally:
        _sending.reset(before)


def _given(env: object) -> _convert.Gift:
    """``env`` as a gift to another process, which gets a copy."""
    ours = _sending.get()
    gift = None if ours is None else ours.gifts.get(id(env))
    if gift is None:
        gift = _convert.Gift(env)
        if ours is not None:
            ours.gifts[id(env)] = gift
    return gift


def environments(
    env: object,
    kwargs: dict[str, Any] | None,
    init_fn: Callable[[], object] | None,
    allow_pickle: bool | None = None,
    *,
    is_quiet: bool = False,
) -> bytes:
    """Instructions for another process to make the environments ``env``, after a call of
    ``init_fn``.

    Windrow gives no warnings there if the process ``is_quiet``, or belongs to another worker than
    the first: each of many would warn of the same. With ``allow_pickle``, that process sends
    pickled objects to this one, otherwise only data; by default, it may if this process may.

    Raises:
        NoProcesses: something that they are made of cannot be sent; the error names it.
    """
    recipe = _convert.of(env, kwargs)
    if getattr(recipe, "own", False):
        # The worker has a copy, which nobody but the worker can close.
        gift = _given(recipe.env)  # type: ignore[attr-defined]
        recipe = replace(recipe, env=gift, own=False)  # type: ignore[call-arg]
    is_quiet = is_quiet or getattr(env, "number", 0) > 0
    sent = (_Origin(), _registered(), _number_type(), is_quiet, recipe, env, init_fn)
    allow_pickle = _codecs.own_codec().allow_pickle if allow_pickle is None else allow_pickle
    return bytes((allow_pickle,)) + pickled(
        sent, {"create_env_fn": env, "create_env_kwargs": kwargs, "init_fn": init_fn}
    )


def member(
    env: object,
    kwargs: dict[str, Any] | None = None,
    door: Door = MEMBER,
    *,
    is_quiet: bool = False,
) -> bytes:
    """How to make the environments ``env``, a member of ``door``, in another process. A member
    ``is_quiet`` where the first one warns for all.

    Raises:
        TypeError: as :func:`environments`.
    """
    try:
        return environments(
            Factory(env) if is_function(env) else env, kwargs, None, is_quiet=is_quiet
        )
    except Unsendable as error:
        raise TypeError(str(error.of(door))) from error.__cause__


def members(recipe: Parallel) -> list[tuple[bytes, int]]:
    """The members of ``recipe`` as they are sent, and what torch's generator in each begins with:
    other numbers, which follow from ``torch.manual_seed`` here.
    """
    torch = sys.modules.get("torch")
    draws = random.Random(f"{torch.initial_seed() if torch else 0} {next(_MADE)}")
    sent = recipe.sent or [
        member(one, is_quiet=number > 0) for number, one in enumerate(recipe.members)
    ]
    return [(one, draws.getrandbits(63)) for one in sent]


def policy(core: object) -> bytes:
    """The policy ``core``, in the form that the engine takes, for another process.

    A network's parameters are sent as bytes, so that the process can use it without torch. Nothing
    else of the policy is sent with it: an empty ``fallback`` says that there is more of it here.

    Raises:
        NoProcesses: something that it is made of cannot be sent; the error names it.
    """
    if isinstance(core, dict) and "remote" not in core:
        core = {
            **core,
            "weights": tensors_to_bytes(core["weights"]),
            "fallback": None if core["fallback"] is None else [],
        }
    elif isinstance(core, list):
        core = _makers(core)
    return pickle.dumps(core)


def read_environments(sent: bytes) -> Recipe:
    """The recipe of the environments that :func:`environments` has sent."""
    # Before anything can fail whose error is sent back.
    _codecs.set_own_codec(bool(sent[0]))
    _, specs, number_type, is_quiet, recipe, given, init_fn = pickle.loads(sent[1:])
    _take_number_type(number_type)
    if is_quiet:
        warnings.filterwarnings("ignore", module=r"windrow\b")
        warnings.simplefilter("ignore", Warning)
    _register(specs)
    if init_fn is not None:
        init_fn()
    worker.environment = given
    return recipe


def read_policy(sent: bytes) -> object:
    """The policy that :func:`policy` has sent, in the form that the engine takes."""
    return pickle.loads(sent)


class _Origin:
    """Where modules are, and the key by which processes of ``multiprocessing`` know each other,
    which its own children inherit. Where this is read, the process takes both over, so what is read
    after it may be of any module here, or a proxy of a ``Manager``.
    """

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        process = sys.modules.get("multiprocessing.process")
        key = None if process is None else bytes(process.current_process().authkey)
        return _take_origin, ([os.path.abspath(entry) for entry in sys.path], key)


def _take_origin(path: list[str], key: bytes | None) -> None:
    sys.path += [entry for entry in path if entry not in sys.path]
    if key is not None:
        from multiprocessing.process import current_process

        current_process().authkey = key


def _register(specs: list[Any]) -> None:
    if specs:
        import gymnasium

        for spec in specs:
            gymnasium.registry.setdefault(spec.id, spec)


def seed_torch(seed: int) -> bool:
    """Seeds torch, which begins every process with the same numbers, if this one has imported it;
    whether it has.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
    return torch is not None


def _number_type() -> str | None:
    """Torch's default type of real numbers, where it is another than in a process that has just
    begun.
    """
    torch = sys.modules.get("torch")
    name = "float32" if torch is None else str(torch.get_default_dtype()).removeprefix("torch.")
    return None if name == "float32" else name


def _take_number_type(name: str | None) -> None:
    if name is not None:
        import torch

        torch.set_default_dtype(getattr(torch, name))


def _makers(makers: list[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Functions that do what ``makers`` do, which are read when they are called first."""
    return [partial(_make, _number_type(), pickled(maker, {"policy": maker})) for maker in makers]


def _make(number_type: str | None, pickled: bytes) -> object:
    _take_number_type(number_type)
    return pickle.loads(pickled)()


def _registered() -> list[Any]:
    """Ids of Gymnasium that another process does not know, since this program or a package of the
    user's has registered them.
    """
    gymnasium = sys.modules.get("gymnasium")
    if gymnasium is None:
        return []
    specs = []
    for spec in gymnasium.registry.values():
        entry = spec.entry_point
        if isinstance(entry, str) and entry.startswith("gymnasium.envs."):
            continue
        try:
            specs.append(replace(spec, entry_point=_elsewhere(entry)))
        except Exception:
            # Its own environments may not be wanted.
            continue
    return specs


def _elsewhere(entry: object) -> object:
    """The entry point of an id, which imports what it needs when it is called first."""
    return partial(_enter, dumps(entry)) if callable(entry) else entry


def _enter(pickled: bytes, **arguments: Any) -> object:
    return pickle.loads(pickled)(**arguments)
