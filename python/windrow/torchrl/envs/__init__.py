"""Environments that keep TorchRL's word where it differs from that of :mod:`windrow.envs`."""

from __future__ import annotations

from windrow import envs
from windrow.envs import utils
from windrow.torchrl._names import register, stand_in

register(__name__, {"windrow.envs.utils": utils.__all__, "windrow.envs": envs.__all__})
__getattr__, __dir__ = stand_in(__name__)

# A module has the same name. Were it imported later, `windrow.torchrl.envs.env_creator` would become the module.
import windrow.torchrl.envs.env_creator  # noqa: E402, F401
from windrow.envs import env_creator as env_creator  # noqa: E402
