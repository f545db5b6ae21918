"""All that the extension calls in Python: these functions, and the methods of objects that keep
these protocols.

The extension knows no other module of this package by its name. What is given to it beside these
are environments, spaces and arrays of libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from windrow import _codecs, _values
from windrow._keys import Key
from windrow._lazy import module
from windrow._needs import torch as needs_torch
from windrow._values import example_of
from windrow._warnings import warn
from windrow.envs._batched import warn_of_turns
from windrow.envs._convert import of as recipe_of
from windrow.envs._gym_wrappers import peel
from windrow.envs._info import tell_of_the_rest
from windrow.envs._innermost import innermost
from windrow.envs._native import mujoco_folders
from windrow.envs._simulators import env_state, load_env_state
from windrow.envs._vectors import habits, options, seed, tell_of_cuts
from windrow.processes import start
from windrow.processes.answers import answer
from windrow.processes.exceptions import GraphRefused
from windrow.processes.setup import (
    environments,
    members,
    policy,
    read_environments,
    read_policy,
    seed_torch,
)
from windrow.processes.start import uses_torch

#: Seconds after which a call that waits for a worker warns that the worker has not returned.
SILENT = 60.0

__all__ = [
    "EnvPort",
    "GraphRefused",
    "PolicyPort",
    "SILENT",
    "StagePort",
    "answer",
    "env_state",
    "environments",
    "example_of",
    "habits",
    "innermost",
    "load_env_state",
    "members",
    "mujoco_folders",
    "needs_torch",
    "observed",
    "options",
    "peel",
    "policy",
    "program",
    "read_by",
    "read_environments",
    "read_policy",
    "received",
    "recipe_of",
    "seed",
    "seed_torch",
    "sent",
    "tell_of_cuts",
    "tell_of_the_rest",
    "uses_torch",
    "warn",
    "warn_of_turns",
    "with_values",
    "without_values",
]

_arguments = module("windrow.policies.arguments")


def observed(value: object, name: str) -> bytes:
    """See :func:`windrow._values.observed`."""
    return _values.observed(value, name, _codecs.own_codec())


def with_values(
    data: TensorDictBase, entries: Iterable[tuple[Sequence[str], Sequence[int], list[bytes]]]
) -> TensorDictBase:
    """See :func:`windrow._values.with_values`."""
    return _values.with_values(data, entries, _codecs.own_codec())


def without_values(
    batch: TensorDictBase,
) -> tuple[TensorDictBase, list[tuple[tuple[str, ...], list[int], list[bytes]]]]:
    """See :func:`windrow._values.without_values`."""
    return _values.without_values(batch, _codecs.own_codec())


def program(
    threads: int, warm: bool
) -> tuple[str, list[str], dict[str, str], tuple[Nursery, bytes] | None]:
    """See :func:`windrow.processes.start.program`."""
    return start.program(threads, warm, __name__)


def sent(error: BaseException) -> bytes:
    """An exception of this worker process, as bytes for the collector."""
    return _codecs.own_codec().write_error(error)


def received(sent: bytes) -> BaseException:
    """The exception that a worker process has :func:`sent`. From a worker elsewhere, the engine
    lets only data through.
    """
    return _codecs.own_codec().read_error(sent)


def read_by(
    policy: Callable[..., Any], trust: bool, observed: Sequence[Key], info: Sequence[Key]
) -> list[Key]:
    """The observations that ``policy`` gets, see :func:`windrow.policies.arguments.read_by`."""
    read: list[Key] = _arguments.read_by(policy, trust, observed, info)
    return read


class EnvPort(Protocol):
    """Environments that Python steps, in whole arrays: one array for each leaf,
    ``[num_envs, *shape]``; of a leaf of bytes, a list.

    Called in the thread of the worker that steps them.
    """

    def describe(self) -> dict[str, Any]:
        """The specs, as entries of ``Description`` in ``describe.rs``. Called once, when the
        environments are made.
        """
        ...

    def reads(self, keys: list[Any]) -> None:
        """Names the columns of the policy that :meth:`step` gets as its state, in this order.
        Called once, when the policy is bound.
        """
        ...

    def reset(self, envs: list[int], seeds: list[int | None]) -> list[Any]:
        """Resets these environments, and returns the observations of all."""
        ...

    def step(self, actions: list[Any], state: list[Any]) -> tuple[list[Any], Any, Any, Any]:
        """Steps all environments: observations, rewards, and whether each was terminated or
        truncated.
        """
        ...

    def close(self) -> None:
        """Closes the environments. Called when the engine drops them."""
        ...


class PolicyPort(Protocol):
    """A policy that Python evaluates.

    Called in the thread of the worker that acts, or of the inference server.

    Attributes:
        wants_first: :meth:`act` takes a flag for each row that begins an episode, after the
            observations.
        wants_places: then the place of each row, too.
    """

    wants_first: bool
    wants_places: bool

    def bind(
        self,
        inputs: dict[Key, Any],
        action_keys: list[Key],
        batch: list[int],
        groups: Sequence[tuple[Key, list[int]]] = (),
        examples: Sequence[tuple[Key, bytes]] = (),
    ) -> list[tuple[list[str], Any]]:
        """Evaluates the policy once, and returns the names and tensors that it writes, actions
        first.
        """
        ...

    def act(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors for one step, in the order that :meth:`bind` returned."""
        ...

    def load(self, weights: TensorDictBase) -> None:
        """Loads weights that :meth:`check` accepted."""
        ...

    def check(self, weights: TensorDictBase) -> None:
        """Raises ValueError where weights belong to another policy."""
        ...

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights by name."""
        ...

    def state(self, with_generator: bool) -> bytes:
        """What is remembered from one step to the next; of a worker process, torch's generator
        too.
        """
        ...

    def set_state(self, state: bytes) -> None:
        """Goes on from what :meth:`state` returned."""
        ...


class StagePort(Protocol):
    """What a collector does with each batch, in the thread that iterates or in that of
    ``start``.
    """

    def _prepare(self) -> AbstractContextManager[None] | None:
        """Runs before frames are collected; returns a context for their collection."""
        ...

    def _processed(self, batch: TensorDictBase) -> TensorDictBase:
        """A batch after post-processing. Called with zeros, too, to learn its shape."""
        ...

    def _finish(self, batch: TensorDictBase) -> TensorDictBase:
        """What iteration returns for a batch."""
        ...

    def _write(self, batch: TensorDictBase, number: int | None, patient: bool) -> None:
        """Writes a batch to the replay buffer, as writer ``number`` of the buffer."""
        ...

    def _fail(self, error: BaseException) -> None:
        """Keeps the error that has ended the thread of ``start``."""
        ...


if TYPE_CHECKING:
    import torch
    from tensordict import TensorDictBase

    from windrow._windrow import Nursery
    from windrow.collectors import BaseCollector
    from windrow.policies.torch_policy import TorchPolicy

    def _keep(policy: TorchPolicy, collector: BaseCollector) -> tuple[PolicyPort, StagePort]:
        return policy, collector
