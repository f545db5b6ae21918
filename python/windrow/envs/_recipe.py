"""How environments are made, as values: what a second worker, another process or a saved run needs to make the same ones.

A recipe is a kind of environment, its arguments, and the transforms around it. The engine makes environments from it, in the thread
that steps them. Most recipes can be written down as plain values; an environment that exists already, or a function that cannot
be imported by its name, cannot.
"""

from __future__ import annotations

import importlib
import itertools
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from windrow._lazy import gymnasium
from windrow.envs._specs import Key
from windrow.envs._torchrl_compat import is_of_torchrl

if TYPE_CHECKING:
    from windrow._objects import Keeper

Entry = tuple[Key, str, tuple[int, ...]]
"""An entry of ``info`` that is observed: its key, element type and shape."""

Described = tuple[str, dict[str, Any]]
"""The name of a transform that the engine has, and its arguments."""


_KINDS: dict[str, type[Recipe]] = {}
#: Counts the environments in processes of this program.
_MADE = itertools.count()

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

    def pickled(self) -> list[tuple[bytes, int]]:
        """The members as they are sent, and what torch's generator in each begins with: other numbers, which follow from
        ``torch.manual_seed`` here."""
        from windrow import _sending

        torch = sys.modules.get("torch")
        draws = random.Random(f"{torch.initial_seed() if torch else 0} {next(_MADE)}")
        recipes = enumerate(self.members)
        sent = self.sent or [_sending.member(recipe, is_quiet=number > 0) for number, recipe in recipes]
        return [(member, draws.getrandbits(63)) for member in sent]


def of(env: Any, kwargs: dict[str, Any] | None = None, own: bool = True) -> Recipe:
    """The recipe of anything that is an environment: one of windrow, Gymnasium or TorchRL, an id, or a function that returns any
    of these.

    Choices are one-hot as in TorchRL, except under a bare id, which means what it does in Rust: there they are indices.

    Args:
        kwargs: passed to ``env`` where it is a function.
        own: whether it is the user's own object, which stays open; otherwise it was made to be stepped, and is closed in the end.
    """
    if isinstance(env, Recipe):
        return env
    # Asked of the type, since wrappers pass attributes that they do not have on to the environment inside.
    if hasattr(type(env), "_recipe"):
        return env._recipe()
    if isinstance(env, str):
        from windrow.envs.libs.gym import GymEnv

        return GymEnv(env, categorical_action_encoding=True)._recipe()
    # An object of a library was made by code that has imported it.
    if "gymnasium" in sys.modules:
        if isinstance(env, gymnasium.vector.VectorEnv):
            return Vector(env if own else _Gift(env), own)
        if isinstance(env, gymnasium.Env):
            return Gymnasium(env if own else _Gift(env), own)
    if is_of_torchrl(env):
        from windrow.envs._torchrl import Adapter

        return Adapted(Adapter(env) if own else _Gift(Adapter(env)), own)
    # Without one of these, no environment of another library has been made.
    if {"dm_env", "pettingzoo", "stable_baselines3", "vmas"} & sys.modules.keys():
        from windrow.envs._adapters import adapted

        if (known := adapted(env)) is not None:
            return of(known, None, own)
    if not callable(env):
        raise TypeError(f"expected an environment, its id, or a function that returns one, got {type(env).__name__}")
    return Call(env, kwargs)


#: Transforms that leave observations as they are, or out. Others might take numbers for what these stand for.
_INDIFFERENT = {
    "ActionDiscretizer",
    "ActionMask",
    "BinarizeReward",
    "ExcludeTransform",
    "FrameSkipTransform",
    "InitTracker",
    "NoopResetEnv",
    "RewardClipping",
    "RewardScaling",
    "RewardSum",
    "SelectTransform",
    "StepCounter",
}


def beside(recipe: Recipe, keeper: Keeper) -> Recipe:
    """The same environments, of which ``keeper`` keeps what no column holds, where it can."""
    if any(name not in _INDIFFERENT for name, _ in recipe.transforms):
        return recipe
    if isinstance(recipe, Adapted):
        return replace(recipe, env=recipe.env.beside(keeper) if recipe.own else _Kept(recipe.env, keeper))
    if isinstance(recipe, Call):
        return replace(recipe, function=_Kept(recipe.function, keeper))
    if type(recipe) is Many:
        return replace(recipe, members=tuple(beside(member, keeper) for member in recipe.members))
    return recipe


def with_keeper(env: Any, keeper: Keeper) -> Any:
    """``env`` as the engine takes it: what it makes or is, of which ``keeper`` keeps what no column holds."""
    if hasattr(type(env), "keeper"):
        env.keeper = keeper
        return env
    return env if isinstance(env, str) or "torchrl" not in sys.modules else Beside(env, keeper)


class Beside:
    """An environment, and what keeps values of it that no column holds; ``own`` as for :func:`of`."""

    def __init__(self, env: Any, keeper: Keeper, own: bool = True) -> None:
        self.env = env
        self._keeper = keeper
        self._own = own

    def _recipe(self) -> Recipe:
        return beside(of(self.env, own=self._own), self._keeper)


class _Kept:
    """Makes what ``make`` does, with a keeper."""

    def __init__(self, make: Any, keeper: Keeper) -> None:
        self._make = make
        self._keeper = keeper

    def __call__(self, **arguments: Any) -> Any:
        made = self._make(**arguments)
        # An adapter, or an environment.
        return made.beside(self._keeper) if hasattr(type(made), "beside") else Beside(made, self._keeper, own=False)


class _Given:
    """An environment that was given away."""

    _env: Any = None

    def __call__(self) -> Any:
        env, self._env = self._env, None
        # Python drops a KeyboardInterrupt that it raises in __del__, as it does where a signal came just before.
        self.__class__ = _Given
        return env


class _Gift(_Given):
    """Gives an environment away once, to the engine, which closes it in the end. It closes an environment that it still has."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __del__(self) -> None:
        self._env.close()


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
