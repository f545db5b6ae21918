"""Functions that make environments which share what their transforms gather."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from windrow import _fence, _windrow
from windrow.collectors import _statistics
from windrow.envs._base import EnvBase
from windrow.processes.pickling import Sendable

#: Held while a creator gets its shared memory: several workers may call it at the same time.
_ONE_AT_A_TIME = threading.Lock()


class EnvCreator:
    """A function that makes environments, with arguments kept.

    Args:
        create_env_fn: the function, or a class of environments.
        create_env_kwargs: arguments that each call passes on; they win over those of the call.
        share_memory: let environments share what their transforms gather, such as running
            statistics, as TorchRL's ``EnvCreator`` does: those that this object makes, and copies
            of it that worker processes make theirs with, as long as this one lives. Environments of
            torchrl share the tensors of ``state_dict()``, and numbers and locks of
            ``multiprocessing``, and how workers take turns decides what each finds there; those of
            windrow share running statistics as :class:`VecNorm` says. A state that cannot be shared
            is an error when an environment is made.
        kwargs: more of ``create_env_kwargs``.

    Raises:
        TypeError: ``create_env_fn`` is no function.
    """

    def __init__(
        self,
        create_env_fn: Callable[..., Any],
        create_env_kwargs: dict[str, Any] | None = None,
        share_memory: bool = True,
        **kwargs: object,
    ) -> None:
        if not callable(create_env_fn):
            raise TypeError(
                f"expected create_env_fn to be a function that makes an environment, got {type(create_env_fn).__name__}"
            )
        self.create_env_fn = create_env_fn
        self.create_env_kwargs = {**(create_env_kwargs or {}), **kwargs}
        self.share_memory = share_memory
        self._shared: Any = None
        #: Of the transforms of windrow's environments.
        self._statistics: Any = None

    def __call__(self, **kwargs: object) -> Any:
        made = self.create_env_fn(**{**kwargs, **self.create_env_kwargs})
        if self.share_memory and _fence.is_a(made, "EnvBase"):
            self._memory().give(made)
        elif self.share_memory and isinstance(made, EnvBase):
            _statistics.share(made, self._own_memory())
        return made

    def _own_memory(self) -> _windrow.Statistics:
        with _ONE_AT_A_TIME:
            if self._statistics is None:
                self._statistics = _windrow.Statistics()
            return self._statistics

    def _memory(self) -> Any:
        with _ONE_AT_A_TIME:
            if self._shared is None:
                self._shared = _fence.sharing.SharedState()
            return self._shared

    def __getstate__(self) -> dict[str, Any]:
        if self.share_memory:
            # There before copies go to other processes.
            self._memory()
            self._own_memory()
        return {**vars(self), "create_env_fn": Sendable(self.create_env_fn)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Of a copy in this process, the state is as it was given.
        made = state["create_env_fn"]
        vars(self).update(state, create_env_fn=getattr(made, "sendable", made))

    def state_dict(self) -> dict[str, Any]:
        """What environments of this creator share, in the form in which each of them saves it.
        Makes one to ask it.

        Raises:
            TypeError: environments have no state.
        """
        made = self._made_to_ask()
        try:
            if not (_fence.is_a(made, "EnvBase") or _statistics.has_gathered(made)):
                made.rand_step(made.reset())
            return dict(made.state_dict())
        finally:
            made.close()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what :meth:`state_dict` gave into environments of this creator, existing ones too.

        Raises:
            TypeError: environments have no state.
        """
        made = self._made_to_ask()
        try:
            made.load_state_dict(state_dict)
            if _fence.is_a(made, "EnvBase"):
                _fence.sharing.share_loaded(made)
        finally:
            made.close()

    def _made_to_ask(self) -> Any:
        made = self()
        if not hasattr(made, "state_dict"):
            raise TypeError(
                f"expected {self!r} to make an environment of windrow or TorchRL, which have a state, got {type(made).__name__}"
            )
        return made

    def make_variant(self, **kwargs: object) -> EnvCreator:
        """The same function with other arguments."""
        return EnvCreator(
            self.create_env_fn, {**self.create_env_kwargs, **kwargs}, self.share_memory
        )

    def __repr__(self) -> str:
        return f"EnvCreator({self.create_env_fn!r}, {self.create_env_kwargs!r})"
