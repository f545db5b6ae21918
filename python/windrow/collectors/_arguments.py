"""From the arguments of collectors to the options of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from windrow._numbers import whole
from windrow._passed_over import Fixed

#: Arguments of TorchRL's collectors that change nothing here.
WITHOUT_EFFECT: dict[str, Fixed] = {
    "use_buffers": (True, "batches are always written in place"),
    "no_cuda_sync": (False, "nothing is copied without waiting for it"),
    "local_init_rb": (True, "buffers are always made by whoever made them"),
    "num_sub_threads": (1, "workers are threads of one process"),
    "env_device": (None, "environments are stepped on the CPU"),
    "num_threads": (None, "the number of threads of torch is left alone"),
    "collector_class": (None, "there is one collector"),
    "extend_buffer": (True, "batches are always written as a whole"),
    "weight_sync_schemes": (None, "weights travel through one store"),
    "weight_recv_schemes": (None, "weights travel through one store"),
}


def frames(name: str, value: Any) -> int | None:
    """A number of frames, such as ``1_000`` or ``1e3``, where None and negative numbers mean that there is no limit.

    Raises:
        TypeError: it is no whole number.
    """
    if value is None:
        return None
    try:
        if isinstance(value, bool) or int(value) != value:
            raise TypeError
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be a whole number of frames, got {value!r}") from None
    return int(value) if value >= 0 else None


def own_seed(envs: list[Any]) -> int | None:
    """The seed that the first of ``envs`` was given by its ``set_seed``, and that it has not begun an episode with yet.

    Environments of other libraries keep theirs by themselves.
    """
    from windrow.envs._base import EnvBase

    seeds = [env._take_seed() for env in envs if isinstance(env, EnvBase)]
    return next((seed for seed in seeds if seed is not None), None)


def noise_seed() -> int:
    """A number of torch's generator: the same after each ``torch.manual_seed``, another for the next collector."""
    import torch

    return int(torch.randint(2**62, ()))


def positive(name: str, value: Any) -> int | None:
    """As :func:`frames`, where 0 means that there is no limit either."""
    return frames(name, value) or None


def environments(create_env_fn: Any, num_workers: int | None, *, single: bool, name: str) -> tuple[list[Any], int | None]:
    """The environments as a list, and the number of workers where it is not the length of that list.

    Raises:
        TypeError: one environment for several workers, whose number is not told or is none.
        ValueError: the numbers contradict each other, or there is no environment.
    """
    is_list = isinstance(create_env_fn, (list, tuple))
    envs = list(create_env_fn) if is_list else [create_env_fn]
    if not envs:
        raise ValueError(f"{name} needs an environment, got an empty list")
    if num_workers is not None:
        num_workers = whole("num_workers", num_workers, 1)
    if single:
        if len(envs) != 1 or num_workers not in (None, 1):
            got = len(envs) if len(envs) != 1 else num_workers
            raise ValueError(f"{name} has one worker, got {got}: use MultiSyncCollector or MultiAsyncCollector")
        return envs, None
    if is_list:
        if num_workers not in (None, len(envs)):
            raise ValueError(f"num_workers={num_workers}, but create_env_fn is a list of {len(envs)}")
        return envs, None
    if num_workers is None:
        raise TypeError(f"{name} needs a list of environments, one for each worker, or num_workers")
    return envs, num_workers


def random_frames(given: Any, replay_buffer: Any) -> int:
    """Frames for which actions are random, without those that were written to the replay buffer before."""
    return max(0, (frames("init_random_frames", given) or 0) - getattr(replay_buffer, "write_count", 0))


def environment_arguments(given: Any, workers: int, envs: list[Any]) -> list[dict[str, Any] | None]:
    """Arguments of the function that makes environments, for each worker.

    Raises:
        ValueError: a list that is not as long as there are workers.
        RuntimeError: one of ``envs`` is no function that could be given any.
    """
    if given is None or isinstance(given, dict):
        each = [given or None]
    elif len(given) != workers:
        raise ValueError(f"create_env_kwargs has {len(given)} entries for {workers} workers")
    else:
        each = [entry or None for entry in given]
    made = next((env for env in envs if not is_function(env)), None)
    if made is not None and any(each):
        kind = repr(made) if isinstance(made, str) else type(made).__name__
        raise RuntimeError(f"create_env_kwargs are arguments of a function that makes an environment, got {kind}")
    return each


def is_function(env: Any) -> bool:
    """Whether ``env`` is what makes an environment, not one itself."""
    return callable(env) and (isinstance(env, type) or not hasattr(env, "step"))


def shares(frames_per_batch: Any) -> tuple[int | None, list[int] | None]:
    """Frames of a batch, or of each worker in it.

    Raises:
        TypeError: it is not given, or no whole number.
        ValueError: it is less than 1.
    """
    if frames_per_batch is None:
        raise TypeError("frames_per_batch is missing: the number of frames in a batch")
    if isinstance(frames_per_batch, (list, tuple)):
        return None, [_share(entry) for entry in frames_per_batch]
    return _share(frames_per_batch), None


def _share(given: Any) -> int:
    number = positive("frames_per_batch", given)
    if number is None:
        raise ValueError(f"frames_per_batch must be a positive number, got {given!r}")
    return number


def factories(policy_factory: Any, workers: int) -> list[Callable[[], Any]] | None:
    """Functions that make a policy, one for all workers or one for each.

    Raises:
        ValueError: a list that is not as long as there are workers.
        TypeError: one of them cannot be called.
    """
    if policy_factory is None:
        return None
    given: Sequence[Any] = policy_factory if isinstance(policy_factory, (list, tuple)) else [policy_factory] * workers
    if len(given) != workers:
        raise ValueError(f"policy_factory has {len(given)} entries for {workers} workers")
    for factory in given:
        if not callable(factory):
            raise TypeError(f"policy_factory must be a function, got {type(factory).__name__}")
    return list(given)


def concatenation(cat_results: Any, *, sync: bool) -> str:
    """How shares of workers are put together, as the engine calls it.

    Raises:
        ValueError: it is none of the ways, or makes no sense because a batch is one worker's.
    """
    if cat_results is None:
        return "0"
    if cat_results != "stack" and (isinstance(cat_results, bool) or cat_results not in (0, -1)):
        raise ValueError(f'cat_results must be "stack", 0 or -1, got {cat_results!r}')
    if not sync:
        raise ValueError("cat_results makes no sense where each batch is one worker's")
    return str(cat_results)


def device_of(name: str, *candidates: Any, workers: int = 1) -> Any:
    """The first device that is given, or a list of one for each worker, if it is another than the CPU.

    Raises:
        RuntimeError: there is no such device, or a list is not as long as there are workers.
        ValueError: workers have several.
    """
    given = next((candidate for candidate in candidates if candidate is not None), None)
    if isinstance(given, (list, tuple)):
        if len(given) != workers:
            raise RuntimeError(f"{name} has {len(given)} entries for {workers} workers")
        if len({str(entry) for entry in given}) != 1:
            raise ValueError(f"{name} must be one device for all workers, got {list(map(str, given))}")
        given = given[0]
    if given is None or str(given) == "cpu":
        return None
    import torch

    device = torch.device(given)
    if device.type == "cpu":
        return None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"{name}={device}: torch finds no CUDA device on this machine")
    return device


def cpu(*candidates: Any) -> Any:
    """``torch.device("cpu")``, if the first device that is given is that."""
    given = next((candidate for candidate in candidates if candidate is not None), None)
    if isinstance(given, (list, tuple)):
        given = given[0]
    if given is None:
        return None
    import torch

    device = torch.device(given)
    return device if device.type == "cpu" else None
