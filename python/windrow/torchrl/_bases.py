"""What environments and transforms of a user's derive from: TorchRL's classes."""

from __future__ import annotations

from torchrl import envs as theirs
from windrow.torchrl._both import Both


class _Kind(Both, type(theirs.EnvBase)):  # type: ignore[misc]
    """The class of :class:`EnvBase`."""


class EnvBase(theirs.EnvBase, metaclass=_Kind):
    __doc__ = theirs.EnvBase.__doc__


class Transform(theirs.Transform, metaclass=Both):
    __doc__ = theirs.Transform.__doc__
