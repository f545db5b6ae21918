"""Weights by name, from whatever holds them, and the module that a collector's weights come
from.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex

from windrow._lazy import module, numpy
from windrow._windrow import CollectorCore, Readings
from windrow.policies.live import Live
from windrow.policies.places import slots

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDictBase

    from windrow._types import Weights
    from windrow.policies.choose import Choice

# Data and buffers come with it.
_session = module("windrow.ray._session")

#: The name, among the weights, of the policy's state beside them: see
#: :mod:`windrow.policies.beside`.
BESIDE = "_windrow_beside"


class WeightSource:
    """The module that a collector takes weights from, if it has one, and the way of weights from
    there to the workers.

    Workers act with copies of the weights, which :meth:`publish` renews, unless the collector acts
    with the user's own module. Then the module and the policy always have the same weights: either
    the engine calls the module, or it has read a network out of it, which :meth:`follow` updates
    before each batch. Once the module is no network any more, the engine calls it.

    Args:
        core: the engine's collector.
        choice: its policy. The weights of its module are published where none are given.
        inline: it acts in the calling thread, between :meth:`follow` and :meth:`settle`.
    """

    def __init__(self, core: CollectorCore, choice: Choice, *, inline: bool) -> None:
        self._inline = inline
        self._core = core
        self._choice = choice
        self.module = choice.source
        self._is_actor = is_actor = choice.shared
        is_native = core.policy_backend() == "native"
        #: The engine calls the module, which therefore has the weights already.
        self._is_called = is_actor and not is_native
        self._live = Live(self.module, choice.written) if self._is_called else None
        self._beside = choice.beside if is_native or not is_actor else None
        #: Where the tensors and parts are that :meth:`follow` looks at.
        self._slots: Readings | None = None
        if self._beside is not None:
            self._beside.envs = core.envs_of_a_worker()
            if not is_native:
                self._beside.begin_attributes()
        if is_actor and is_native:
            self._find_slots()

    def publish(
        self, given: Weights | Mapping[int, Weights] | None = None, workers: object = None
    ) -> None:
        """Publishes weights as a new version.

        Args:
            given: a module, a TensorDict of parameters, a ``state_dict``, or a dictionary from
                workers to these; None for the weights of the collector's module.
            workers: the only workers that take these weights: numbers, or one; None for all.

        Raises:
            TypeError: ``given`` is none of these, or ``workers`` are no numbers.
            ValueError: the weights belong to another policy, or a worker does not exist.
            RuntimeError: there are no weights to publish, or the module was changed other than by
                its weights, and that cannot be followed.
        """
        if isinstance(given, dict) and given and all(isinstance(worker, int) for worker in given):
            self._check_workers(given)
            for worker, weights in given.items():
                self._core.publish(self._choice.published(weights), worker)
            return
        chosen = _numbers_of(workers)
        self._check_workers(chosen or ())
        if given is None:
            if self.module is None:
                if self._choice.has_weights:
                    raise RuntimeError(
                        "no weights were given, and the collector has no module to take them from"
                    )
                return
            given = self.module
        weights = weights_of(given)
        if self._is_actor:
            copy_weights(tensors_of(self.module), weights)
        if self._slots is not None:
            self.follow(in_any_case=True)
            return
        if self._live is not None:
            self._renew(self._live)
            return
        weights = self._choice.published(weights)
        for worker in [None] if chosen is None else chosen:
            self._core.publish(weights, worker)

    def follow(self, *, in_any_case: bool = False) -> None:
        """Publishes the weights of a module that the engine has read, if they have changed since
        the last batch, or ``in_any_case``: code that collects and learns by turns need not publish
        them.

        Raises:
            RuntimeError: the module was changed other than by its weights, and was to be native.
        """
        if self._live is not None and self._live.has_moved():
            self._renew(self._live)
        if self._slots is None:
            return
        if self._beside is not None:
            self._beside.refresh()
        if self._is_lost():
            self._core.publish(self._of_itself(), None)
            return
        if not self._slots.is_same():
            self._find_slots()
        self._core.follow(in_any_case)

    def _renew(self, live: Live) -> None:
        """Begins a new version of the weights of a module that the engine calls."""
        if not self._inline:
            self.settle()
        live.begin()
        self._core.publish(self._of_itself(), None)

    def settle(self) -> None:
        """Notes whether the weights of a module that the engine calls have changed while it did."""
        if self._live is not None and self._live.has_moved():
            self._live.mix(int(self._core.stats()["policy_version"]))

    def mark(self, batch: TensorDictBase) -> None:
        """Writes -1 as ``policy_version`` into rows of ``batch`` that may have been computed with
        other weights than others of their version.
        """
        if self._live is not None:
            if not self._inline:
                self.settle()
            self._live.mark(batch)

    def renew(self) -> None:
        """Publishes the weights that were published last as a new version, to all workers."""
        self._core.publish(self._of_itself() if self._is_called else self._core.weights(), None)

    def add_to(self, state: dict[str, Any]) -> None:
        """Writes the weights of a module that the engine calls into the ``state_dict`` of a
        collector; the engine saves others.
        """
        if self._is_called:
            state["policy_state_dict"] = {
                name: value.detach().clone() for name, value in tensors_of(self.module).items()
            }
        # The program makes again what is no weight.
        state["policy_state_dict"].pop(BESIDE, None)

    @contextlib.contextmanager
    def restored(self, state: dict[str, Any]) -> Iterator[None]:
        """A context in which the engine loads ``state``, the ``state_dict`` of a collector. Where
        the collector acts with the module itself, the module takes the saved weights over at the
        end, unless there was an error.

        Raises:
            ValueError: the state holds the weights of another policy.
        """
        if self._beside is not None and "policy_state_dict" in state:
            state["policy_state_dict"] = self._beside.added_to(state["policy_state_dict"])
            self._is_lost()
        if not self._is_actor:
            yield
            return
        own = tensors_of(self.module)
        saved = {
            name: value
            for name, value in state.get("policy_state_dict", {}).items()
            if name != BESIDE
        }
        weights = fitted(own, saved)
        if self._is_called:
            state["policy_state_dict"] = self._of_itself()
        yield
        copy_weights(own, weights)

    @property
    def lost(self) -> str | None:
        """The reason why the engine calls a module by now that was a network."""
        return None if self._beside is None else self._beside.lost

    def _is_lost(self) -> bool:
        """Has the engine call the user's own module from now on, where it is no network any more;
        True where it does.
        """
        if not self._is_actor or self.lost is None:
            return False
        if not self._is_called:
            self._slots, self._is_called = None, True
            self._live = Live(self.module, self._choice.written)
        return True

    def _of_itself(self) -> dict[str, Any]:
        """What to publish where the engine calls the module, which has the weights already."""
        if self._beside is None:
            return {}
        # In the place of weights are those that were published last, which nobody loads.
        return {**self._core.weights(), BESIDE: self._beside.leaf}

    def _find_slots(self) -> None:
        self._slots = slots_of(self.module)
        self._core.set_source(
            tensors_of(self.module) | ({} if self._beside is None else {BESIDE: self._beside.leaf})
        )

    def _check_workers(self, workers: Iterable[int]) -> None:
        number = int(self._core.stats()["workers"])
        unknown = [worker for worker in workers if not 0 <= worker < number]
        if unknown:
            raise ValueError(f"there is no worker {unknown[0]}: the collector has {number}")


def _numbers_of(workers: object) -> list[int] | None:
    """The numbers of ``workers``: several, or one; None for all."""
    if workers is None:
        return None
    several: Iterable[Any] = (
        workers
        if isinstance(workers, Iterable) and not isinstance(workers, SupportsIndex)
        else [workers]
    )
    try:
        return [operator.index(worker) for worker in several]
    except TypeError:
        raise TypeError(f"expected the numbers of workers, or one, got {workers!r}") from None


def original(policy: Any) -> Any:
    """The policy that was compiled or captured as a CUDA graph, or ``policy`` itself."""
    if type(policy).__name__ == "CudaGraphModule":
        policy = policy.module
    return getattr(policy, "_orig_mod", policy)


def source_of(policy: object) -> torch.nn.Module | None:
    """The module whose weights a policy has; None for other functions."""
    import torch

    owner = policy if isinstance(policy, torch.nn.Module) else getattr(policy, "__self__", None)
    if not isinstance(owner, torch.nn.Module):
        return None
    # A method around which there is a TensorDictModule, which has no weights of its own.
    method = getattr(owner, "module", None)
    return (
        source_of(method)
        if inspect.ismethod(method) and isinstance(method.__self__, torch.nn.Module)
        else owner
    )


def slots_of(module: torch.nn.Module) -> Readings:
    """Says whether ``module`` has the same parts, parameters and buffers as now."""
    parts = module.modules()
    return slots(held for one in parts for held in (one._modules, one._parameters, one._buffers))


def devices_of(module: torch.nn.Module) -> set[torch.device]:
    """The devices that the parameters and buffers of ``module`` are on."""
    return {value.device for value in (*module.parameters(), *module.buffers())}


def tensors_of(module: torch.nn.Module) -> dict[str, Any]:
    """Parameters and buffers of ``module`` by their names in its ``state_dict``: the tensors
    themselves, not copies.
    """
    import torch

    state = original(module).state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def weights_of(source: object) -> dict[str, Any]:
    """Weights by name from a module, a ``TensorDict`` of parameters, a ``state_dict``, or what
    :func:`windrow.ray._session.pack` has made.

    Raises:
        TypeError: ``source`` is none of these.
    """
    import torch

    if isinstance(source, numpy.ndarray):
        # Packed, as actors of Ray get them. Whoever asks reads them at once, so they need no copy.
        source = _session.unpack(source, copy=False)
    if hasattr(source, "flatten_keys"):
        return {str(name): value for name, value in source.flatten_keys(".").items()}
    if isinstance(source, torch.nn.Module):
        return tensors_of(source)
    if isinstance(source, Mapping):
        return {name: value for name, value in source.items() if isinstance(value, torch.Tensor)}
    raise TypeError(
        f"expected a module, a TensorDict of its parameters or a state_dict as weights, got {type(source).__name__}"
    )


def widened(weights: Mapping[str, Any]) -> dict[str, Any]:
    """``weights`` with float32 in place of narrower floats, which the engine does not have. No
    value changes.
    """
    import torch

    narrow = (torch.bfloat16, torch.float16)
    return {
        name: value.float() if value.dtype in narrow else value for name, value in weights.items()
    }


def check_model(model_id: str) -> None:
    """Raises KeyError where no model has this id."""
    if model_id != "policy":
        raise KeyError(f"no model is called {model_id!r}: the only one is 'policy'")


def weights_by_id(weights: Mapping[str, Any]) -> Weights:
    """The weights of the only model; raises KeyError where ``weights`` names another one, or
    none.
    """
    for model_id in weights:
        check_model(model_id)
    return weights["policy"]


def check_weights(own: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Checks that ``weights`` belong to a module with the tensors ``own``.

    Raises:
        ValueError: a tensor is missing, unknown or of another shape.
    """
    missing = sorted(own.keys() - weights.keys())
    unknown = sorted(weights.keys() - own.keys())
    if missing or unknown:
        raise ValueError(
            f"weights of another policy: missing {missing or 'none'}, unknown {unknown or 'none'}"
        )
    for name, value in own.items():
        if tuple(value.shape) != tuple(weights[name].shape):
            got = list(weights[name].shape)
            raise ValueError(
                f"weights of another policy: {name}: expected shape {list(value.shape)}, got {got}"
            )


def fitted(own: Mapping[str, Any], weights: Mapping[str, Any]) -> dict[str, Any]:
    """``weights`` on the devices and of the types of the tensors ``own``.

    Raises:
        ValueError: as :func:`check_weights`.
        Exception: what torch raises for a tensor without values.
    """
    check_weights(own, weights)
    return {
        name: weights[name].detach().to(value.device, value.dtype) for name, value in own.items()
    }


def copy_weights(own: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Copies ``weights`` into the tensors ``own``, all of them or, on error, none.

    Raises:
        Exception: as :func:`fitted`.
    """
    import torch

    ready = fitted(own, weights)
    with torch.no_grad():
        for name, value in own.items():
            if value is not weights[name]:
                value.copy_(ready[name])
