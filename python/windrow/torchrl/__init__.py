"""A stand-in for ``torchrl``: a script changes ``torchrl`` to ``windrow.torchrl`` in its imports,
and nothing else.

Every name and module of torchrl, at any depth, is answered here: by windrow's class or function
where it has one, which then keeps TorchRL's word where :mod:`windrow.collectors`,
:mod:`windrow.envs` and :mod:`windrow.data` keep that of their own; by torchrl's otherwise, which is
imported only then.

This package may use the rest of windrow. Nothing else of windrow uses it but by what is entered in
:mod:`windrow._fence`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow.torchrl._names import find_below, stand_in

if TYPE_CHECKING:
    from windrow.torchrl import (
        collectors as collectors,
        data as data,
        envs as envs,
        modules as modules,
    )

find_below(__name__)
__getattr__, __dir__ = stand_in(__name__)
