"""What storages, samplers, writers and limiters have in common."""

import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from windrow._arguments import (
    Arguments,
    bound_to_self,
    documentation,
    fields_of,
    refuse_unknown,
    signature_of,
)
from windrow.data._content import kind_of

#: The key of an entry: a name, or several of them.
Key = str | tuple[str, ...]


class Part(Arguments):
    """A part of a buffer: its class declares an argument a line. Its ``kind`` is the entry of the
    engine's table that makes it, by default that of its base.
    """

    kind: ClassVar[str]
    #: Arguments that can be set later, which the buffers of the part then follow.
    _settable: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, kind: str | None = None) -> None:
        has_repr, is_generated = "__repr__" in vars(cls), "__init__" not in vars(cls)
        super().__init_subclass__()
        if kind is not None:
            cls.kind = kind
        # Parts are themselves, not values.
        cls.__eq__, cls.__hash__ = object.__eq__, object.__hash__  # type: ignore[method-assign]
        cls.__setattr__ = Part._set  # type: ignore[assignment,method-assign]
        if not has_repr:
            cls.__repr__ = Part.__repr__  # type: ignore[method-assign]
        if is_generated:
            cls.__init__ = _checked(cls)  # type: ignore[method-assign]
            cls.__doc__ = f"{inspect.getdoc(cls)}\n\n{documentation(cls)}"

    def _set(self, name: str, value: object) -> None:
        field = next((field for field in fields_of(self) if field.name == name), None)
        if field is None or name not in self._settable:
            raise AttributeError(f"{name} of {type(self).__name__} cannot be set: make another one")
        value = field.metadata["check"](name, value)
        for buffer in self._buffers:
            getattr(buffer._core, f"set_{name}")(value)
        self._settle(**{name: value})

    def _attach(self, buffer: object) -> None:
        """Adds a buffer that the part serves."""
        self.__dict__.setdefault("_served", weakref.WeakSet()).add(buffer)

    def _detach(self, buffer: object) -> None:
        """Removes a buffer that the part serves no more."""
        self.__dict__["_served"].discard(buffer)

    @property
    def _buffers(self) -> list[Any]:
        """The buffers that the part serves."""
        return list(self.__dict__.get("_served", ()))

    def __getstate__(self) -> dict[str, Any]:
        # A copy serves no buffer until it is given to one.
        return {name: value for name, value in self.__dict__.items() if name != "_served"}

    def _options(self) -> dict[str, Any]:
        """What the engine makes the part of: its arguments by name, of which it takes those that it
        knows.
        """
        return {
            "kind": self.kind,
            **{field.name: getattr(self, field.name) for field in fields_of(self)},
        }

    def __repr__(self) -> str:
        fields = sorted(fields_of(self), key=lambda field: bool(field.kw_only))
        said = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields
            if _is_told(self, field)
        ]
        return f"{type(self).__name__}({', '.join(said)})"


def made(name: str, kind: Any, part: object, default: Any = None) -> Any:
    """The part itself, or the one that a class or function makes; ``default`` in the place of None.

    Raises:
        TypeError: it is not of this ``kind``.
    """
    part = default if part is None else part() if callable(part) else part
    if not isinstance(part, kind):
        raise TypeError(f"expected a {name} of windrow.data, got {kind_of(part)}")
    return part


def _checked(kind: type[Part]) -> Callable[..., None]:
    """The ``__init__`` of ``kind``, which names unknown arguments before anything else."""
    init = kind.__init__
    known = {field.name for field in fields_of(kind)}

    @functools.wraps(init)
    def checked(self: object, /, *args: Any, **kwargs: Any) -> None:
        refuse_unknown(type(self).__name__, kwargs, known)
        init(self, *args, **kwargs)

    signature = signature_of(kind)
    checked.__signature__ = bound_to_self(signature)  # type: ignore[attr-defined]
    kind.__signature__ = signature  # type: ignore[attr-defined]
    return checked


def _is_told(part: Part, field: dataclasses.Field[Any]) -> bool:
    """Whether an argument has an effect and another value than its default."""
    value = getattr(part, field.name)
    is_default = type(value) is type(field.default) and value == field.default
    return not is_default and "ignored" not in field.metadata
