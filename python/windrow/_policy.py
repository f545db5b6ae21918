"""From what a user calls a policy to what the engine takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from windrow import _weights
from windrow.modules import RandomPolicy

BACKENDS = ("auto", "native", "torch")


@dataclass(frozen=True)
class Choice:
    """A policy in the form that the engine takes.

    Attributes:
        core: None for random actions, functions that make an object for each worker, or a description of a network.
        source: the user's module, where weights come from when none are given; None without one.
        shared: the engine calls the user's own object, if it calls one, so that weights need not be copied to it.
    """

    core: Any
    source: Any = None
    shared: bool = False


def is_random(policy: Any, env: Any) -> bool:
    """Whether the engine's random policy does what ``policy`` would do in ``env``."""
    if policy is None:
        return True
    if not isinstance(policy, RandomPolicy) and type(policy).__name__ != "RandomPolicy":
        return False
    spec = policy.action_spec
    if spec is None or spec is getattr(env, "action_spec", None):
        return True
    # These leave nothing to choose but how many actions there are.
    if type(spec).__name__ in ("Categorical", "OneHot", "MultiCategorical", "MultiOneHot", "Binary"):
        return getattr(spec, "mask", None) is None
    return bool(spec == getattr(env, "action_spec", None))


def choose(
    policy: Any,
    factories: Sequence[Callable[[], Any]] | None,
    *,
    backend: str,
    exploration_type: str,
    threads: bool,
    device: Any,
    trust: bool,
    register: bool = True,
    env: Any = None,
    evaluates: bool = False,
) -> Choice:
    """The form in which the engine takes ``policy``, or what ``factories`` make for each worker.

    ``env`` is an environment of the collector, or what makes one. Where ``register``, environments observe ``is_init`` for
    policies that read it, and states begin as their modules say. What ``evaluates`` is in evaluation mode.

    Raises:
        TypeError: both are given, or the policy cannot be called.
        ValueError: the backend is not known, or the policy has no native form though one is demanded.
    """
    if backend not in BACKENDS:
        raise ValueError(f'policy_backend must be "auto", "native" or "torch", got {backend!r}')
    if factories is None and is_random(policy, env):
        return Choice(None)
    from windrow import _acting

    make = partial(
        _actor,
        exploration_type=exploration_type,
        # As whoever builds the collector has it, whatever learners do later.
        aggregates=_acting.aggregation(),
        threads=threads,
        device=device,
        trust=trust,
        register=register,
        evaluates=evaluates,
    )
    if factories is not None:
        return Choice([partial(make, factory, copied=False) for factory in factories], source=policy)
    if not callable(policy):
        raise TypeError(f"expected a policy that can be called, got {type(policy).__name__}")
    fallback = [partial(make, lambda: policy, copied=threads)]
    module = _weights.original(policy) if hasattr(policy, "state_dict") else None
    shared = module is not None and not threads and device is None
    if backend != "torch" and device is None:
        from windrow import _lower

        lowered = _lower.lower(policy, exploration_type, strict=backend == "native")
        if lowered is not None:
            core = {**lowered, "fallback": None if backend == "native" else fallback}
            return Choice(core, source=module, shared=shared)
    elif backend == "native":
        raise ValueError("a native policy runs on the CPU: policy_device must be left out")
    return Choice(fallback, source=module, shared=shared)


def _actor(make: Callable[[], Any], *, exploration_type: str, threads: bool, **options: Any) -> Any:
    """What acts for one worker."""
    from windrow._torch_policy import TorchPolicy

    return TorchPolicy(make(), exploration_type, threaded=threads, **options)


def acting(exploration_type: str) -> AbstractContextManager[None]:
    """What holds while torch evaluates a policy in the user's thread."""
    from windrow import _acting

    return _acting.acting(exploration_type, _acting.aggregation())


def compiled(policy: Any, compile_policy: Any, cudagraph_policy: Any, device: Any) -> Any:
    """``policy``, compiled if that was asked for.

    Raises:
        RuntimeError: CUDA graphs were asked for without a CUDA device.
    """
    if cudagraph_policy:
        if device is None:
            raise RuntimeError("cudagraph_policy needs a policy on a CUDA device: policy_device is the CPU")
        from tensordict.nn import CudaGraphModule

        options = cudagraph_policy if isinstance(cudagraph_policy, dict) else {}
        policy = CudaGraphModule(policy, **options)
    if compile_policy:
        import torch

        options = dict(compile_policy) if isinstance(compile_policy, dict) else {}
        # How often TorchRL calls a policy before it relies on the compiled one.
        options.pop("warmup", None)
        policy = torch.compile(policy, **options)
    return policy


def copied_now(core: Any) -> Any:
    """The form ``core`` with policies that are made, and so copied, at once instead of when a worker needs them."""
    if isinstance(core, list):
        return [partial(_given, make()) for make in core]
    if isinstance(core, dict) and core["fallback"] is not None:
        return {**core, "fallback": copied_now(core["fallback"])}
    return core


def _given(made: Any) -> Any:
    return made
