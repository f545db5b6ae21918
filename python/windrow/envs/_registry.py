"""Which function takes environments of which library, found by the module of an object's class."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from windrow import _fence

#: Functions, or where they are, by the library.
_ADAPTERS: dict[str, Callable[[Any], Any] | str] = {
    **_fence.ADAPTERS,
    "dm_env": "windrow.envs._adapters:of_dm_env",
    "stable_baselines3": "windrow.envs._adapters:of_sb3",
}


def register_adapter(library: str, adapt: Callable[[Any], Any]) -> None:
    """Lets collectors, evaluators and wrappers take environments of another library.

    A worker process has to register the adapter too: call this in the module that defines the
    function that makes environments, or in the function itself.

    Example:
        >>> from windrow.envs import GymEnv, register_adapter
        >>> class Track:  # An environment of a library.
        ...     id = "CartPole-v1"
        >>> register_adapter(Track.__module__, lambda env: GymEnv(env.id) if isinstance(env, Track) else None)

    Args:
        library: the package that defines the environments' class or a base of it, such as
            ``"dm_env"``, or a module in it, which wins.
        adapt: takes an object of the library, and returns it in a form that is taken already: a
            ``gymnasium.Env``, a ``gymnasium.vector.VectorEnv``, an environment of windrow or
            TorchRL, or an object with the methods of ``windrow._ports.EnvPort``, which steps
            several environments in whole arrays. None says that it is no environment.

    Raises:
        TypeError: ``library`` is no text, or ``adapt`` no function.
    """
    if not isinstance(library, str) or not library:
        raise TypeError(f"expected the name of a package or module as library, got {library!r}")
    if not callable(adapt):
        raise TypeError(f"expected a function as adapt, got {type(adapt).__name__}")
    _ADAPTERS[library] = adapt


def adapters() -> list[str]:
    """The libraries whose environments have an adapter."""
    return sorted(_ADAPTERS)


def adapted(env: object) -> Any:
    """What the adapter of the library of ``env`` returns; None where no adapter takes it."""
    asked = set()
    for base in type(env).__mro__:
        library = base.__module__
        while library:
            if library in _ADAPTERS and library not in asked:
                asked.add(library)
                if (made := _adapter(library)(env)) is not None:
                    # It would be asked again, and so on.
                    if type(made) is type(env):
                        raise TypeError(
                            f"the adapter of {library!r} returned a {type(env).__name__}, as it was given: expected an environment of another class, "
                            "or None for what is none"
                        )
                    return made
            library = library.rpartition(".")[0]
    return None


def _adapter(library: str) -> Callable[[Any], Any]:
    found = _ADAPTERS[library]
    if isinstance(found, str):
        module, _, name = found.partition(":")
        found = _ADAPTERS[library] = getattr(importlib.import_module(module), name)
    return found
