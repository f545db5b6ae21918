"""Classes that TorchRL has under the same names."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any

from windrow import _fence


class ReadByWrappers:
    """An attribute that wrappers of TorchRL read, or write, of what they wrap: they do not take
    windrow's objects, and the error says which do.
    """

    def __get__(self, own: object, owner: type | None = None) -> ReadByWrappers:
        if own is None:
            return self
        name = f"{type(own).__module__}.{type(own).__name__}"
        raise TypeError(
            f"TorchRL goes around environments and transforms of its own, got {name}: TransformedEnv, SerialEnv, ParallelEnv and "
            "the collectors of windrow take it. windrow's TransformedEnv takes transforms of TorchRL as well"
        )

    def __set__(self, own: object, value: object) -> None:
        self.__get__(own)


class Counterpart(type):
    """Classes that TorchRL has under the same names. Its objects are instances of them too.

    A user's class is derived from TorchRL's where it derives from a base of all environments or
    transforms, or has methods that only TorchRL calls, such as ``_step``.
    """

    #: Whether TorchRL's class takes arguments that this one refuses.
    _defers: bool = False

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: object
    ) -> Any:
        own = namespace.get("__module__", "").partition(".")[0] == "windrow"
        theirs = (
            bases
            if own or _OWN_METHODS & namespace.keys()
            else tuple(_derivable(base, namespace, name) for base in bases)
        )
        if theirs == bases:
            return super().__new__(mcls, name, bases, namespace, **options)
        return types.prepare_class(name, theirs)[0](name, theirs, namespace, **options)

    if not TYPE_CHECKING:

        def __call__(cls, *args: object, **kwargs: object) -> Any:
            try:
                made = super().__call__(*args, **kwargs)
                if cls._defers:
                    vars(made)["_given"] = args, kwargs
                return made
            except (TypeError, ValueError) as error:
                theirs = cls._theirs() if cls._defers else None
                if theirs is None:
                    raise
                try:
                    made = theirs(*args, **kwargs)
                except Exception:
                    raise error from None
                vars(made)["refused_by_windrow"] = str(error)
                return made

    @property
    def __signature__(cls) -> inspect.Signature:
        own = cls.__init__ is not object.__init__  # type: ignore[misc]
        signature = inspect.signature(cls.__init__ if own else lambda self: None)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __instancecheck__(cls, instance: object) -> bool:
        if super().__instancecheck__(instance):
            return True
        # An object of TorchRL was made by code that has imported it.
        theirs = cls._theirs() if _fence.loaded("envs") is not None else None
        return theirs is not None and isinstance(instance, theirs)

    def _theirs(cls) -> type | None:
        """TorchRL's class; None where it has none, or is not installed."""
        return (
            _fence.class_of(cls.__name__) if cls.__module__.partition(".")[0] == "windrow" else None
        )


#: What says how the engine makes something.
_OWN_METHODS = {"_recipe", "_new_recipe", "_described"}


def is_windrows(made: object) -> bool:
    """Whether ``made`` is an environment or a transform of windrow."""
    return isinstance(type(made), Counterpart)


def _derivable(base: type, namespace: dict[str, Any], name: str) -> type:
    """The class that a user's class ``name`` derives from, where it names ``base``."""
    theirs = base._theirs() if isinstance(base, Counterpart) else None
    is_root = base.__name__ in ("EnvBase", "Transform")
    if theirs is None:
        if isinstance(base, Counterpart) and is_root:
            raise ImportError(
                f"{name} is derived from {base.__name__}, which is TorchRL's then: install it"
            )
        return base
    return (
        theirs
        if is_root
        or any(hasattr(theirs, entry) and not hasattr(base, entry) for entry in namespace)
        else base
    )
