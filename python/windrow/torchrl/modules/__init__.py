"""Policies and servers that keep TorchRL's word where it differs from that of
:mod:`windrow.modules`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow import modules
from windrow.torchrl._names import register, stand_in

if TYPE_CHECKING:
    from windrow.modules import (
        RandomPolicy as RandomPolicy,
        RemotePolicy as RemotePolicy,
        RemoteServer as RemoteServer,
    )
    from windrow.torchrl._servers import (
        InferenceClient as InferenceClient,
        InferenceServer as InferenceServer,
    )

register(
    __name__,
    {
        "windrow.modules": modules.__all__,
        "windrow.torchrl._servers": ["InferenceClient", "InferenceServer"],
    },
)
__getattr__, __dir__ = stand_in(__name__)
