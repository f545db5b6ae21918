"""How environments are made, as values: what a second worker or another process needs to make the
same ones.

A recipe is a kind of environment, its arguments, and the transforms around it. The engine makes
environments from it, in the thread that steps them. Another process gets it pickled, within the
engine's own recipe (ADR 0029).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from windrow._keys import Key

Entry = tuple[Key, str, tuple[int, ...]]
"""An entry of ``info`` that is observed: its key, element type and shape."""

Described = tuple[str, dict[str, Any]]
"""The name of a transform that the engine has, and its arguments."""


@dataclass(frozen=True)
class Recipe:
    """How to make environments of some ``kind``."""

    kind: ClassVar[str]
    #: Whether batches have a dimension for the environments, even if there is one.
    is_batched: ClassVar[bool] = False
    #: Whether the engine steps the environments, so that several threads can at the same time. None
    #: before a function was called.
    is_native: ClassVar[bool | None] = False

    #: Names and arguments, the first nearest to the environment.
    transforms: tuple[Described, ...] = field(default=(), kw_only=True)

    def __init_subclass__(cls, kind: str) -> None:
        cls.kind = kind

    def transformed(self, *transforms: Described) -> Recipe:
        """The same environments with ``transforms`` around them."""
        return replace(self, transforms=(*self.transforms, *transforms))


@dataclass(frozen=True)
class Native(Recipe, kind="native"):
    """An environment that comes with windrow."""

    is_native = True
    id: str
    one_hot: bool
    frame_skip: int = 1
    #: What it is made with, as an object of JSON; nothing for one that takes no arguments.
    arguments: str = ""


@dataclass(frozen=True)
class Gymnasium(Recipe, kind="gymnasium"):
    """An environment of Gymnasium: ``env`` itself where it is the user's ``own``, which stays open,
    otherwise what ``env()`` makes.
    """

    env: Any
    own: bool
    #: Whether choices are one-hot vectors, as in TorchRL; otherwise indices, as in Gymnasium.
    one_hot: bool = False
    frame_skip: int = 1
    info: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Vector(Recipe, kind="vector"):
    """A vector of Gymnasium, ``env`` as for :class:`Gymnasium`."""

    is_batched = True
    env: Any
    own: bool
    one_hot: bool = False
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
    """Several environments that step side by side, each in a process of its own, whose libraries
    use ``threads`` threads.
    """

    is_native = True
    threads: int = 1
    #: Seconds that the processes have to end.
    timeout: float = 10.0
    #: Whether they have as long where nobody closes them.
    patient: bool = False
    #: Seconds that a call of a member may take before the member is killed; and whether steps go on
    #: without members that have ended.
    step_timeout: float | None = None
    outlives: bool = False
    #: The number of the first member, if these are a part of more members.
    first: int = 0
    #: The members as they are sent, where they are not recipes alone; and where those who step them
    #: are found.
    sent: tuple[bytes, ...] | None = field(default=None, compare=False)
    live: Any = field(default=None, compare=False)
