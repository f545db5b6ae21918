"""Several environments in lockstep."""

import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from windrow._arguments import Arguments, argument, ignored, outside, takes
from windrow._lazy import torch
from windrow._windrow import EnvHandle
from windrow.envs._base import EnvBase
from windrow.envs._recipe import Many, of
from windrow.envs._torchrl_compat import is_of_torchrl

_NO_PROCESSES = "environments are stepped in this process"


class BatchedArguments(Arguments):
    """The arguments of environments in lockstep."""

    num_workers: int = argument("number of environments", kw_only=False)
    create_env_fn: Any = argument("an environment or a function that makes one, for all; or a list with one for each", kw_only=False)
    create_env_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None = argument(
        "passed to the functions; a dict for all, or a list with one for each", default=None
    )
    device: "torch.device | str | None" = argument("where tensors are put", default=None)
    share_individual_td: bool | None = ignored(_NO_PROCESSES, default=None)
    shared_memory: bool = ignored(_NO_PROCESSES, default=True)
    memmap: bool = ignored(_NO_PROCESSES, default=False)
    num_threads: int | None = ignored(_NO_PROCESSES, default=None)
    num_sub_threads: int = ignored(_NO_PROCESSES, default=1)
    serial_for_single: bool = ignored(_NO_PROCESSES, default=False)
    non_blocking: bool = ignored(_NO_PROCESSES, default=False)
    mp_start_method: str | None = ignored(_NO_PROCESSES, default=None)
    use_buffers: bool | None = ignored(_NO_PROCESSES, default=None)
    metadata_from_workers: bool = ignored(_NO_PROCESSES, default=False)
    consolidate: bool = ignored(_NO_PROCESSES, default=True)
    daemon: bool = ignored(_NO_PROCESSES, default=False)
    shutdown_timeout: float = ignored(_NO_PROCESSES, default=10.0)
    pin_memory: bool = ignored(_NO_PROCESSES, default=False)
    allow_step_when_done: bool = ignored(_NO_PROCESSES, default=False)
    policy_proof: Any = ignored(_NO_PROCESSES, default=None)


class SerialEnv(EnvBase):
    """Environments that step together in this process, batch size ``[num_workers]``.

    Raises:
        TypeError: an unknown argument.
        ValueError: a list of another length than ``num_workers``.
    """

    @takes(BatchedArguments)
    def __init__(self, arguments: BatchedArguments) -> None:
        super().__init__(arguments.device)
        number = self.num_workers = arguments.num_workers
        self._makers = _for_each("create_env_fn", arguments.create_env_fn, number)
        self._kwargs = _for_each("create_env_kwargs", arguments.create_env_kwargs or {}, number)

    def _new_recipe(self) -> Many:
        given = zip(self._makers, self._kwargs, strict=True)
        return Many(tuple(of(make, kwargs or None) for make, kwargs in given))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_workers}, {self._makers[0]!r})"


class ParallelEnv(SerialEnv):
    """As :class:`SerialEnv`. Native environments are so fast that they step one after the other. Those of Python do too, since they
    share the interpreter's lock; a warning says so once.
    """

    def _new_recipe(self) -> Many:
        recipe = super()._new_recipe()
        first = recipe.members[0]
        # What a function makes is known once it was called.
        if EnvHandle(first).is_python if first.is_native is None else not first.is_native:
            warn_of_turns()
        return recipe


def _for_each(name: str, given: Any, number: int) -> list[Any]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        return [given] * number
    if len(given) != number:
        raise ValueError(f"{name} has {len(given)} entries for num_workers={number}")
    return list(given)


@functools.cache
def warn_of_turns() -> None:
    """Says once that environments written in Python take turns."""
    turns = "environments written in Python share the interpreter's lock: in threads they take turns"
    warnings.warn(turns, UserWarning, stacklevel=outside())


#: Held while environments take over the shared state: several workers may call one creator at the same time.
_ONE_AT_A_TIME = threading.Lock()


class EnvCreator:
    """A function that makes environments, with arguments kept.

    Args:
        create_env_fn: the function, or a class of environments.
        create_env_kwargs: arguments that each call passes on; they win over those of the call.
        share_memory: let environments of TorchRL share what their transforms gather, such as running statistics, as its own
            ``EnvCreator`` does.
        kwargs: more of ``create_env_kwargs``.
    """

    def __init__(
        self,
        create_env_fn: Callable[..., Any],
        create_env_kwargs: dict[str, Any] | None = None,
        share_memory: bool = True,
        **kwargs: Any,
    ) -> None:
        self.create_env_fn = create_env_fn
        self.create_env_kwargs = {**(create_env_kwargs or {}), **kwargs}
        self.share_memory = share_memory
        self._state: Any = None

    def __call__(self, **kwargs: Any) -> Any:
        made = self.create_env_fn(**{**kwargs, **self.create_env_kwargs})
        if self.share_memory and is_of_torchrl(made):
            with _ONE_AT_A_TIME:
                if self._state is None:
                    # Transforms have their state with the first step.
                    made.rand_step(made.reset())
                    self._state = made.state_dict()
                # They go on with the very tensors that they are given.
                made.load_state_dict(self._state, strict=False)
        return made

    def make_variant(self, **kwargs: Any) -> "EnvCreator":
        """The same function with other arguments."""
        return EnvCreator(self.create_env_fn, {**self.create_env_kwargs, **kwargs}, self.share_memory)

    def __repr__(self) -> str:
        return f"EnvCreator({self.create_env_fn!r}, {self.create_env_kwargs!r})"


def env_creator(create_env_fn: Callable[..., Any]) -> "EnvCreator":
    """The function ``create_env_fn`` as an :class:`EnvCreator`."""
    return EnvCreator(create_env_fn)
