"""One declaration of a class's arguments, from which signature, documentation, checks and the
engine's options come.

A declaration is a subclass of :class:`Arguments` with a line for each argument; :func:`takes` makes
an ``__init__`` (or any other method) of it, whose arguments type checkers, completion, ``help`` and
``inspect.signature`` see:

    >>> from windrow._arguments import Arguments, argument, ignored, takes
    >>> from windrow._numbers import at_least
    >>> class RoomArguments(Arguments):
    ...     width: int = argument("steps from wall to wall", check=at_least(1), engine=True)
    ...     seed: int | None = argument("what random choices follow from", default=None, engine=True)
    ...     device: str = ignored("rooms are on the CPU", default="cpu")
    >>> class Room:
    ...     @takes(RoomArguments)
    ...     def __init__(self, arguments: RoomArguments) -> None:
    ...         self.options = arguments.for_engine()
    >>> Room(width=3).options
    {'width': 3, 'seed': None}

An argument that is ``ignored`` is not in the signature, which ends with ``**legacy`` instead; type
checkers know it all the same. A module that declares arguments does without
``from __future__ import annotations``: signatures show types as they are.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Concatenate,
    ForwardRef,
    Literal,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
)

from windrow._numbers import whole
from windrow._warnings import warn

P = ParamSpec("P")
A = TypeVar("A", bound="Arguments")
R = TypeVar("R")

#: Takes the name of an argument and its value, and returns the value to be used, or raises an error
#: that names both.
Check = Callable[[str, Any], Any]


def argument(
    doc: str,
    *,
    more: str = "",
    default: object = dataclasses.MISSING,
    kw_only: bool = True,
    check: Check | None = None,
    engine: bool = False,
) -> Any:
    """One argument of a declaration.

    Args:
        doc: what it means, in a line.
        more: what does not fit into that line; ``help`` has it below all arguments.
        default: its value where it is left out; it is required where there is none.
        kw_only: whether it is given by name only.
        check: checks and converts a value; a default of None is not checked.
        engine: whether the engine takes it, under the same name.
    """
    metadata = {"doc": doc, "more": more, "check": check, "engine": engine}
    return dataclasses.field(default=default, kw_only=kw_only, metadata=metadata)


def ignored(why: str, *, default: object) -> Any:
    """An argument of TorchRL's that has no effect: ``default`` is the value that holds, ``why``
    says why. Another value is warned of.
    """
    metadata = {"doc": f"no effect: {why}", "more": "", "ignored": (default, why)}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(argument, ignored)
)
class Arguments:
    """The arguments of a class, checked. Subclasses declare them, and those of a subclass come on
    top of its base's.

    A subclass that is a ``group`` gives what it declares a heading in ``help``. A class with many
    arguments inherits from a few groups; ``help`` begins with those that are ``common``.
    """

    _group: ClassVar[str] = "Arguments"
    _common: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, group: str | None = None, common: tuple[str, ...] = ()) -> None:
        if group is not None:
            cls._group = group
        if common:
            cls._common = common
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        for field in fields_of(type(self)):
            value, check = getattr(self, field.name), field.metadata.get("check")
            if check is not None and not (value is None and field.default is None):
                self._settle(**{field.name: check(field.name, value)})
        warn_all_ignored(
            vars(self),
            {
                field.name: field.metadata["ignored"]
                for field in fields_of(type(self))
                if _is_ignored(field)
            },
        )

    def _settle(self, **values: object) -> None:
        """Sets arguments that follow from others, before anybody has seen this."""
        vars(self).update(values)

    def but(self, **values: object) -> Self:
        """The same arguments with other ``values``, which are not checked."""
        made = copy.copy(self)
        made._settle(**values)
        return made

    def for_engine(self) -> dict[str, Any]:
        """What the engine takes as it is, by name."""
        return {
            field.name: getattr(self, field.name)
            for field in fields_of(type(self))
            if field.metadata.get("engine")
        }


def takes(
    declaration: Callable[P, A],
) -> Callable[[Callable[[Any, A], R]], Callable[Concatenate[Any, P], R]]:
    """Makes a method that takes a declaration's value one that takes its arguments.

    The method raises ``TypeError`` for unknown arguments, naming all of them and what each may have
    been meant to be.
    """
    kind = cast(type[A], declaration)
    # Binds what is ignored, too.
    binding, shown = inspect.signature(declaration), signature_of(declaration)

    def decorate(method: Callable[[Any, A], R]) -> Callable[Concatenate[Any, P], R]:
        @functools.wraps(method)
        def taking(self: object, /, *args: P.args, **kwargs: P.kwargs) -> R:
            name = type(self).__name__ if method.__name__ == "__init__" else method.__name__
            refuse_unknown(name, kwargs, binding.parameters)
            try:
                declared = declaration(*args, **kwargs)
            except TypeError:
                try:
                    binding.bind(*args, **kwargs)
                except TypeError as error:
                    raise TypeError(f"{name}: {error}") from None
                raise
            return method(self, declared)

        taking.__signature__ = bound_to_self(shown)  # type: ignore[attr-defined]
        taking.__annotations__ = {
            field.name: _named(kind, field) for field in fields_of(kind) if not _is_ignored(field)
        }
        # Begun with an empty line, which keeps what follows from being indented like it.
        taking.__doc__ = "\n\n".join([inspect.getdoc(method) or "", documentation(kind)])
        return taking

    return decorate


def _named(declaration: type, field: dataclasses.Field[Any]) -> type | ForwardRef:
    """The type of the argument, which stands for a type where it is text: that is read where the
    argument is declared.
    """
    if not isinstance(field.type, str):
        return field.type
    return ForwardRef(field.type, module=_declaring(declaration, field).__module__)


def _declaring(declaration: type, field: dataclasses.Field[Any]) -> type[Arguments]:
    """The class that declares the argument."""
    return next(
        cls for cls in declaration.__mro__ if field.name in cls.__dict__.get("__annotations__", ())
    )


class _Common(inspect.Parameter):
    """An argument that most programs use."""


class _Signature(inspect.Signature):
    """A signature whose text shows types as readers write them, a line for each argument; where
    some are common, only these.
    """

    def __str__(self) -> str:
        shown = list(self.parameters.values())
        common = [parameter for parameter in shown if isinstance(parameter, _Common)]
        lines: list[str] = []
        for parameter in common or shown:
            if parameter.kind is parameter.KEYWORD_ONLY and "*," not in lines:
                lines.append("*,")
            lines.append(f"{_text_of(parameter)},")
        if common:
            kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            others = sum(parameter.kind in kinds for parameter in shown) - len(common)
            lines.append(f"...  # and {others} more, below in groups")
        return "\n    ".join(["(", *lines]) + "\n)"

    def format(self, **_: object) -> str:
        """As ``str``."""
        return str(self)


def _text_of(parameter: inspect.Parameter) -> str:
    """The name of ``parameter``, its type and its default."""
    if parameter.kind is parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    kind = "" if parameter.annotation is parameter.empty else f": {_shown(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}{kind}{default}"


def signature_of(declaration: Callable[..., object]) -> inspect.Signature:
    """The arguments of a declaration. Those without effect are one: ``**legacy``, which has their
    names and types. A type that is looked up later is a text.
    """
    kind = cast(type[Arguments], declaration)
    fields = {field.name: field for field in fields_of(kind)}
    parameters: list[inspect.Parameter] = []
    # The class's own may be that of a `__new__`.
    own = inspect.signature(kind.__init__).parameters
    for name, parameter in itertools.islice(own.items(), 1, None):
        if not _is_ignored(fields[name]):
            made = _Common if name in kind._common else inspect.Parameter
            parameters.append(
                made(
                    name,
                    parameter.kind,
                    default=parameter.default,
                    annotation=_annotation(fields[name]),
                )
            )
    ignored = {name: field.type for name, field in fields.items() if _is_ignored(field)}
    if ignored:
        legacy: Any = TypedDict("Legacy", ignored, total=False)  # type: ignore[misc]
        parameters.append(
            inspect.Parameter("legacy", inspect.Parameter.VAR_KEYWORD, annotation=Unpack[legacy])
        )
    return _Signature(parameters)


def bound_to_self(signature: inspect.Signature) -> inspect.Signature:
    """``signature`` of a method."""
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    return signature.replace(parameters=[own, *signature.parameters.values()])


def _is_ignored(field: dataclasses.Field[Any]) -> bool:
    return "ignored" in field.metadata


def _annotation(field: dataclasses.Field[Any]) -> object:
    """The type of the argument; as a text where something in it is looked up later."""
    kind = field.type
    return _shown(kind) if isinstance(kind, str) or "ForwardRef(" in repr(kind) else kind


def documentation(declaration: type) -> str:
    """What the arguments of a declaration mean: name, type, default and a line for each. Those that
    most programs use come first, then the others in groups.
    """
    groups: dict[str, list[str]] = {}
    for heading, field in _grouped(declaration):
        groups.setdefault(heading, []).append(_line(field))
    more = [
        (field.name, field.metadata["more"])
        for field in fields_of(declaration)
        if field.metadata["more"]
    ]
    if more:
        groups["More about them"] = [_wrapped(f"{name}: {said}", indent=8) for name, said in more]
    return "\n\n".join("\n".join([f"{heading}:", *lines]) for heading, lines in groups.items())


def _grouped(declaration: type) -> list[tuple[str, dataclasses.Field[Any]]]:
    """Each argument with its heading: common ones, groups, and those without effect."""
    common = cast(type[Arguments], declaration)._common
    fields = {field.name: field for field in fields_of(declaration)}
    first = [("In most programs", fields[name]) for name in common]
    others = [field for name, field in fields.items() if name not in common]
    return first + [
        (_group_of(declaration, field), field) for field in sorted(others, key=_is_ignored)
    ]


def _group_of(declaration: type, field: dataclasses.Field[Any]) -> str:
    """The heading of the argument: that of the class that declares it."""
    return (
        "Taken for TorchRL's sake, without effect"
        if _is_ignored(field)
        else _declaring(declaration, field)._group
    )


def _line(field: dataclasses.Field[Any]) -> str:
    """The argument's name, type and default, and what it means, beside them where it fits."""
    if _is_ignored(field):
        return _wrapped(f"{field.name}: {field.metadata['ignored'][1]}", indent=8)
    shown = _shown(field.type)
    kind = "" if shown in ("Any", "object") else f": {shown}"
    default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
    name, meaning = (
        f"    {field.name}{kind}{default}",
        _wrapped(field.metadata["doc"], indent=_MEANING, first=_MEANING),
    )
    return (
        f"{name}  {meaning[len(name) + 2 :]}" if len(name) + 2 <= _MEANING else f"{name}\n{meaning}"
    )


#: The column in which ``help`` says what an argument means.
_MEANING = 44


def _wrapped(text: str, indent: int, first: int = 4) -> str:
    return textwrap.fill(text, 130, initial_indent=" " * first, subsequent_indent=" " * indent)


#: Modules, of which a reader needs no more than the name of the class.
_PREFIX = re.compile(
    r"\b(?:typing|collections\.abc|collectors|envs|modules|tempfile|tensordict|torch|windrow(?:\.\w+)+)\."
)


def _shown(kind: object) -> str:
    """A type as a reader writes it, such as ``int | None`` or ``'padded' | 'cat'``."""
    if isinstance(kind, ForwardRef):
        kind = kind.__forward_arg__
    if isinstance(kind, str):
        return _PREFIX.sub("", kind)
    if isinstance(kind, type) and not get_args(kind):
        return "None" if kind is NoneType else kind.__name__
    if get_origin(kind) is Literal:
        return " | ".join(map(repr, get_args(kind)))
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(map(_shown, get_args(kind)))
    return _PREFIX.sub(
        "", re.sub(r"ForwardRef\('([^']*)'[^)]*\)", r"\1", inspect.formatannotation(kind))
    )


def instance_of(kind: type) -> Check:
    """A check that a value is of a class of windrow.

    Raises:
        TypeError: it is not.
    """

    def check(name: str, value: object) -> object:
        if not isinstance(value, kind):
            module = ".".join(kind.__module__.split(".")[:2])
            article = "an" if kind.__name__[0] in "AEIOU" else "a"
            got = f"{type(value).__module__}.{type(value).__name__}"
            raise TypeError(f"expected {article} {kind.__name__} of {module} as {name}, got {got}")
        return value

    return check


def one_of(*allowed: object) -> Check:
    """A check that a value is one of ``allowed``.

    Raises:
        ValueError: it is another.
    """
    shown = [f'"{value}"' if isinstance(value, str) else repr(value) for value in allowed]
    expected = " or ".join([", ".join(shown[:-1]), shown[-1]])

    def check(name: str, value: object) -> object:
        if value not in allowed:
            raise ValueError(f"{name} must be {expected}, got {value!r}")
        return value

    return check


def replaces(why: str) -> Check:
    """A check of ``on_loss`` that accepts ``"raise"`` or the number of times that a worker is
    replaced. It refuses ``"continue"`` for the reason ``why``.
    """

    def check(name: str, value: object) -> Literal["raise"] | int:
        if value == "raise":
            return "raise"
        if value == "continue":
            raise ValueError(
                f'{name}="continue": {why}; a number, such as {name}=3, replaces what is lost'
            )
        if isinstance(value, str):
            raise ValueError(
                f'{name} must be "raise" or how often a worker is replaced, got {value!r}'
            )
        return whole(name, value, 0)

    return check


def each_of(name: str, given: object, count: int, of: str) -> list[Any]:
    """The entries of ``given`` for ``count`` of these: those of a list, or one for all.

    Raises:
        ValueError: a list has more or fewer.
    """
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    each = list(given) if is_list else [given] * count  # type: ignore[call-overload]
    if len(each) != count:
        raise ValueError(f"{name} has {len(each)} entries for {count} {of}")
    return each


def warn_ignored(name: str, value: object, holds: object, why: str) -> None:
    """Warns of an argument without effect. The value that holds anyway, and None, need no
    warning.
    """
    warn_all_ignored({name: value}, {name: (holds, why)})


def warn_all_ignored(given: Mapping[str, Any], ignored: Mapping[str, tuple[Any, str]]) -> None:
    """:func:`warn_ignored` for all arguments among those ``given`` that are ``ignored``, by one
    warning. Each has the value that holds and the reason.
    """
    # Of one type, since 0 is no False, and since tensors do not compare.
    differing = {
        name: why
        for name, (holds, why) in ignored.items()
        if (value := given.get(name)) is not None
        and not (type(value) is type(holds) and value == holds)
    }
    if differing:
        warn("; ".join(f"{name} has no effect: {why}" for name, why in differing.items()))


def refuse_unknown(name: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Checks that all arguments ``given`` to ``name`` are known.

    Raises:
        TypeError: some are not; the message says what each may have been meant to be.
    """
    known = sorted(known)
    strange = sorted(set(given) - set(known))

    def described(argument: str) -> str:
        near = difflib.get_close_matches(argument, known, n=1, cutoff=0.75)
        return f"{argument} (did you mean {near[0]}?)" if near else argument

    if strange:
        raise TypeError(f"{name} has no argument {', '.join(map(described, strange))}")


def fields_of(declaration: object) -> tuple[dataclasses.Field[Any], ...]:
    """The arguments of a declaration, or of a value of it."""
    return _fields_of(declaration if isinstance(declaration, type) else type(declaration))


@functools.cache
def _fields_of(declaration: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(declaration)
