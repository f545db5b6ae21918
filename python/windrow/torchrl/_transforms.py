"""Environments and transforms that keep TorchRL's word where it differs from that of
:mod:`windrow.envs`: TorchRL's object is made where windrow's class refuses arguments that TorchRL's
takes.
"""

from __future__ import annotations

import inspect
from typing import Any

from windrow import _fence, envs
from windrow._lazy import module, torch
from windrow.envs._transform import is_own
from windrow.torchrl._both import Both

_around = module("windrow.torchrl._around")

#: All transforms of :mod:`windrow.envs`.
NAMES = sorted({*envs.__all__} - {*envs._HOMES, "TransformedEnv", "Transform", "env_creator"})


class Either(Both):
    """Classes that make TorchRL's object where windrow's class refuses what TorchRL's takes."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except _fence.Beyond as error:
            if cls.__module__ != __name__:
                raise
            return cls._instead(error, *args, **kwargs)

    def _instead(cls, error: _fence.Beyond, *args: Any, **kwargs: Any) -> Any:
        """TorchRL's object, where windrow's class has raised ``error``.

        Raises:
            Beyond: torchrl is not installed.
        """
        if not _fence.is_installed():
            raise error
        if cls.__name__ == "TransformedEnv":
            return _around.OfModels(*args, **kwargs)
        return _around.refused(getattr(_around.theirs, cls.__name__)(*args, **kwargs), error)


for _name in NAMES:
    _own = getattr(envs, _name)
    globals()[_name] = Either(_name, (_own,), {"__doc__": _own.__doc__, "__module__": __name__})


class GymEnv(envs.GymEnv, metaclass=Both):
    __doc__ = envs.GymEnv.__doc__


class GymWrapper(envs.GymWrapper, metaclass=Both):
    __doc__ = envs.GymWrapper.__doc__


class TransformedEnv(envs.TransformedEnv, metaclass=Either):
    __doc__ = envs.TransformedEnv.__doc__
    __signature__ = inspect.signature(envs.TransformedEnv)

    def __init__(
        self, base_env: Any, *args: Any, auto_unwrap: bool | None = None, **kwargs: Any
    ) -> None:
        #: Whether the transforms inside, which run in Python, read what those here write.
        self._is_read = (
            auto_unwrap is False
            and isinstance(base_env, envs.TransformedEnv)
            and not all(map(is_own, base_env._transforms))
        )
        super().__init__(
            base_env, *args, auto_unwrap=None if self._is_read else auto_unwrap, **kwargs
        )

    def insert_transform(self, index: int, transform: Any) -> Any:
        """Adds a transform before the one at ``index``, nearer to the environment."""
        return super().insert_transform(
            index, _around.read_inside(transform) if self._is_read else transform
        )


class RewardScaling(envs.RewardScaling, metaclass=Either):
    __doc__ = envs.RewardScaling.__doc__

    loc: torch.Tensor
    scale: torch.Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        # TorchRL's are tensors, which scripts change in place: the environment around follows.
        self.loc, self.scale = (torch.as_tensor(given).clone() for given in (self.loc, self.scale))

    @property
    def _version(self) -> tuple[int, int]:
        return self.loc._version, self.scale._version
