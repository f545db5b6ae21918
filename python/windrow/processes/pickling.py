"""Values as bytes for another process, functions and classes of a script or a notebook included."""

from __future__ import annotations

import enum
import functools
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Self, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Door:
    """How errors name the argument or the class that starts processes: ``who`` sends something
    ``to`` a process, what to do ``instead``, and the argument that has the environments.
    """

    who: str = 'placement="processes"'
    to: str = "each worker"
    instead: str = 'choose placement="threads"'
    env: str = "create_env_fn"

    @property
    def or_instead(self) -> str:
        """The end of a sentence that has named another way out."""
        return self.instead and f", or {self.instead}"


class NoProcesses(RuntimeError):
    """Workers cannot be processes; in threads the same collector would do."""

    _say: Callable[[Door], str]

    @classmethod
    def said(cls, say: Callable[[Door], str], door: Door = Door()) -> Self:
        """The error with the message that ``say`` returns for ``door``, a collector by default."""
        error = cls(say(door))
        error._say = say
        return error

    def of(self, door: Door) -> Self:
        """The same error, of ``door``."""
        return self.said(self._say, door)


class Unsendable(NoProcesses, TypeError):
    """Something that a worker process needs cannot be pickled."""


def dumps(value: object) -> bytes:
    """``value`` as bytes, functions and classes of a script or a notebook included.

    Raises:
        NoProcesses: cloudpickle is not installed.
        Exception: what pickle raises for a value that it cannot write.
    """
    with io.BytesIO() as file:
        pickler()(file).dump(value)
        return file.getvalue()


class Sendable:
    """In the place of a function where that is pickled, which plain pickle can do then too,
    functions of a script included.
    """

    #: See :func:`windrow.processes.blame.parts`.
    is_around_a_function = True

    def __init__(self, value: object) -> None:
        self.sendable = value

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        return pickle.loads, (dumps(self.sendable),)

    def __deepcopy__(self, _: object) -> Sendable:
        return self


def _itself(value: T) -> T:
    return value


@functools.cache
def pickler() -> type[pickle.Pickler]:
    """Cloudpickle's, which also takes what ``torch.compile`` has compiled."""
    try:
        import cloudpickle
    except ModuleNotFoundError as error:
        raise NoProcesses.said(
            lambda door: f"{door.who} needs cloudpickle: pip install cloudpickle{door.or_instead}"
        ) from error

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, value: object) -> object:
            if isinstance(value, Sendable):
                # In one piece with what is around it.
                return _itself, (value.sendable,)
            if isinstance(value, enum.Enum) and value.name in type(value).__members__:
                # By value, one whose value has changed would not be found.
                return getattr, (type(value), value.name)
            plain = _uncompiled(value)
            return super().reducer_override(value) if plain is None else (_compiled, plain)

    return Pickler


def _uncompiled(value: Any) -> tuple[Any, dict[str, Any]] | None:
    """The module or function that torch has compiled to ``value``, and the arguments known; None
    for anything else.
    """
    known: dict[str, Any] = {}
    if type(value).__name__ == "OptimizedModule":
        plain, backend = value._orig_mod, value.dynamo_ctx.callback
        while hasattr(backend, "_torchdynamo_orig_backend"):
            backend = backend._torchdynamo_orig_backend
        if isinstance(backend, FunctionType):
            known = {"backend": backend}
    elif isinstance(value, FunctionType) and "_torchdynamo_disable" not in vars(value):
        plain = vars(value).get("_torchdynamo_orig_callable")
    else:
        return None
    return None if plain is None else (plain, vars(value).get("_windrow_compiled", known))


def _compiled(plain: Callable[..., Any], arguments: dict[str, Any]) -> Callable[..., Any]:
    """``plain``, compiled when it is called first: code of another process is of no use here."""
    import torch

    return torch.compile(plain, **arguments)
