"""Vectors of environments in the form of Gymnasium's, stepped by windrow: for loops that are your
own.

:func:`make_vec` makes one of an id, of functions that make environments of Gymnasium, or of an
environment of windrow. It is a :class:`gymnasium.vector.VectorEnv`: its spaces, its three modes of
resets, what it returns in ``info``. Stable-Baselines3's loop takes a :class:`windrow.sb3.VecEnv`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow._lazy import is_installed, listing, names_of

if TYPE_CHECKING:
    from windrow.vectors._base import VectorEnv
    from windrow.vectors._make import make_vec

__all__ = ["VectorEnv", "make_vec"]
if not is_installed("gymnasium"):
    # It is derived from Gymnasium's.
    __all__.remove("VectorEnv")

__dir__ = listing(__name__, __all__)
__getattr__ = names_of(__name__, {"VectorEnv": "_base", "make_vec": "_make"})
