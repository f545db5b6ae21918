"""How environments are made, as values: what a second worker, another process or a saved run needs to make the same ones.

A recipe is a kind of environment, its arguments, and the transforms around it. The engine makes environments from it, in the thread
that steps them. Most recipes can be written down as plain values; an environment that exists already, or a function that cannot
be imported by its name, cannot.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar

from windrow.envs._specs import Key

Entry = tuple[Key, str, tuple[int, ...]]
"""An entry of ``info`` that is observed: its key, element type and shape."""

Described = tuple[str, dict[str, Any]]
"""The name of a transform that the engine has, and its arguments."""


_KINDS: dict[str, type[Recipe]] = {}
#: Of a field that :meth:`Recipe.write` leaves out.
_UNWRITTEN = {"unwritten": True}


@dataclass(frozen=True)
class Recipe:
    """How to make environments of some ``kind``."""

    kind: ClassVar[str]
    #: Whether batches have a dimension for the environments, even if there is one.
    is_batched: ClassVar[bool] = False
    #: Whether the engine steps the environments, so that several threads can at the same time. None before a function was called.
    is_native: ClassVar[bool | None] = False

    #: Names and arguments, the first nearest to the environment.
    transforms: tuple[Described, ...] = field(default=(), kw_only=True)

    def __init_subclass__(cls, kind: str) -> None:
        cls.kind = kind
        _KINDS[kind] = cls

    def transformed(self, *transforms: Described) -> Recipe:
        """The same environments with ``transforms`` around them."""
        return replace(self, transforms=(*self.transforms, *transforms))

    def write(self) -> dict[str, Any]:
        """This recipe as plain values, which JSON can hold: :func:`read` makes a recipe of them.

        Raises:
            TypeError: it has an object that cannot be written down; the error names it and its place.
        """
        return _write(self, type(self).__name__)


@dataclass(frozen=True)
class Native(Recipe, kind="native"):
    """An environment that comes with windrow."""

    is_native = True
    id: str
    one_hot: bool
    frame_skip: int = 1


@dataclass(frozen=True)
class Gymnasium(Recipe, kind="gymnasium"):
    """An environment of Gymnasium: ``env`` itself where it is the user's ``own``, which stays open, otherwise what ``env()`` makes."""

    env: Any
    own: bool
    one_hot: bool = True
    frame_skip: int = 1
    info: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Vector(Recipe, kind="vector"):
    """A vector of Gymnasium, ``env`` as for :class:`Gymnasium`."""

    is_batched = True
    env: Any
    own: bool
    one_hot: bool = True
    info: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Adapted(Recipe, kind="adapted"):
    """Environments behind an adapter in Python, ``env`` as for :class:`Gymnasium`."""

    env: Any
    own: bool

    @property
    def is_batched(self) -> bool:  # type: ignore[override]
        """As of the adapter, where there is one already."""
        return self.own and bool(self.env.is_batched)

    @property
    def numbered(self) -> list[Key]:
        """Entries that a keeper keeps, as far as the environments are made."""
        adapter = self.env if self.own else getattr(self.env, "_env", None)
        return list(getattr(adapter, "numbered", ()))


@dataclass(frozen=True)
class Call(Recipe, kind="call"):
    """The environment that a function returns."""

    is_native = None
    function: Any
    kwargs: dict[str, Any] | None = None


@dataclass(frozen=True)
class Many(Recipe, kind="many"):
    """Several environments in lockstep."""

    is_batched = True
    members: tuple[Recipe, ...]

    @property
    def is_native(self) -> bool | None:  # type: ignore[override]
        """Whether all of them are."""
        known = {member.is_native for member in self.members}
        return False if False in known else None if None in known else True


@dataclass(frozen=True)
class Parallel(Many, kind="parallel"):
    """Several environments that step side by side, each in a process of its own, whose libraries use so many ``threads``."""

    is_native = True
    threads: int = 1
    #: Seconds that the processes have to end.
    timeout: float = 10.0
    #: Whether they have as long where nobody closes them.
    patient: bool = False
    #: The members as they are sent, where they are not recipes alone; and where those who step them are found.
    sent: tuple[bytes, ...] | None = field(default=None, compare=False, metadata=_UNWRITTEN)
    live: Any = field(default=None, compare=False, metadata=_UNWRITTEN)


# Plain values. A dictionary has one of the tags "kind", "dict", "tuple", "partial" and "import", so that what a user passes on, such
# as a dictionary of arguments, is not taken for a recipe.


def _write(value: Any, place: str) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Recipe):
        entries = [entry for entry in fields(value) if not entry.metadata.get("unwritten")]
        written = {entry.name: _write(getattr(value, entry.name), f"{place}.{entry.name}") for entry in entries}
        return {"kind": value.kind, **written}
    if isinstance(value, (list, tuple)):
        items = [_write(one, f"{place}[{index}]") for index, one in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {"dict": {name: _write(one, f"{place}[{name!r}]") for name, one in value.items()}}
    if isinstance(value, partial):
        called = [value.func, list(value.args), dict(value.keywords)]
        return {"partial": [_write(part, place) for part in called]}
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    # What a script defines is in another module where the script is not what was started.
    if module in sys.modules and module != "__main__" and name and _imported(f"{module}:{name}") is value:
        return {"import": f"{module}:{name}"}
    raise TypeError(
        f"{place} is {value!r}, which cannot be written down: an environment can be made elsewhere where it is given by its id, or by "
        "a function at the top of a module, whose arguments are numbers, strings, and lists or dictionaries of these"
    )


def read(written: Any) -> Any:
    """The recipe that :meth:`Recipe.write` has written. It imports the functions that the recipe names: read only recipes from
    sources whose code you would run.
    """
    if isinstance(written, list):
        return [read(one) for one in written]
    if not isinstance(written, dict):
        return written
    if "kind" in written:
        kind = _KINDS[written["kind"]]
        return kind(**{name: read(value) for name, value in written.items() if name != "kind"})
    ((tag, value),) = written.items()
    if tag == "dict":
        return {name: read(one) for name, one in value.items()}
    if tag == "tuple":
        return tuple(read(value))
    if tag == "partial":
        function, args, kwargs = read(value)
        return partial(function, *args, **kwargs)
    return _imported(value)


def _imported(name: str) -> Any:
    """The function or class that ``module:qualified.name`` names."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
