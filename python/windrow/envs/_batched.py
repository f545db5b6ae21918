"""Several environments in lockstep."""

import functools
from collections.abc import Sequence
from typing import Any, TypeVar

from windrow import _fence, _windrow
from windrow._arguments import Arguments, argument, each_of, ignored, takes
from windrow._lazy import numpy, torch
from windrow._numbers import at_least, seconds_or_none
from windrow._types import Device, Envs
from windrow._warnings import warn
from windrow._windrow import EnvHandle
from windrow.envs._base import EnvBase
from windrow.envs._convert import of
from windrow.envs._recipe import Many, Parallel, Recipe
from windrow.processes import setup
from windrow.processes.proxy import Remote

_NO_PROCESSES = "environments are stepped in this process"
_SHARED = "processes share memory in any case"
T = TypeVar("T")

#: Where there are no worker processes, environments take turns.
_PROCESSES = hasattr(_windrow, "ParallelMembers")


class BatchedArguments(Arguments):
    """The arguments of environments in lockstep."""

    num_workers: int = argument("number of environments", kw_only=False, check=at_least(1))
    create_env_fn: Envs = argument(
        "an environment or a function that makes one, for all; or a list with one for each",
        kw_only=False,
    )
    create_env_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None = argument(
        "passed to the functions; a dict for all, or a list with one for each", default=None
    )
    device: Device | None = argument("where tensors are put", default=None)
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
    policy_proof: object = ignored(_NO_PROCESSES, default=None)


class SerialEnv(EnvBase):
    """Environments that step together in this process, batch size ``[num_workers]``.

    Raises:
        TypeError: an unknown argument.
        ValueError: ``num_workers`` is 0 or less, or a list has another length.

    Example:
        >>> from windrow.envs import GymEnv, SerialEnv
        >>> SerialEnv(3, lambda: GymEnv("CartPole-v1")).rollout(5, break_when_any_done=False).shape
        torch.Size([3, 5])
    """

    @takes(BatchedArguments)
    def __init__(self, arguments: BatchedArguments) -> None:
        self._set(arguments)

    def _set(self, arguments: BatchedArguments) -> None:
        super().__init__(arguments.device)
        number = self.num_workers = arguments.num_workers
        self._makers = each_of("create_env_fn", arguments.create_env_fn, number, "environments")
        self._kwargs = each_of(
            "create_env_kwargs", arguments.create_env_kwargs or {}, number, "environments"
        )

    def start(self) -> None:
        """Makes the environments, which happens at first use in any case."""
        self._made()

    def _new_recipe(self) -> Many:
        given = zip(self._makers, self._kwargs, strict=True)
        return Many(tuple(of(make, kwargs or None) for make, kwargs in given))

    def _by_hand(self) -> Recipe:
        recipe = self._recipe()
        # Each environment by itself, so that some can step without the others.
        members = recipe.members if type(recipe) is Many else ()
        return Many(tuple(Many((member,)) for member in members)) if members else recipe

    def __getitem__(self, index: "int | slice | Sequence[int] | torch.Tensor") -> EnvBase:
        """Some of the environments, batch size ``[chosen]``, to be reset and stepped without the
        others: they are shared, not copied.

        Closing what is returned closes none of them. It is stepped by hand: collectors take the
        whole.

        Args:
            index: a number, a slice, or several numbers, as a list, an array or a tensor.

        Raises:
            IndexError: there is no such environment.
            TypeError: the index is a mask, or anything else.
            ValueError: it chooses none, or one twice.
        """
        return Chosen(self, index)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_workers}, {self._makers[0]!r})"


class Chosen(EnvBase):
    """Some environments of a :class:`SerialEnv` or :class:`ParallelEnv`."""

    def __init__(self, env: SerialEnv, index: "int | slice | Sequence[int] | torch.Tensor") -> None:
        super().__init__(env._device)
        self._env, self._workers = env, _chosen(index, env.num_workers)
        self.num_workers = len(self._workers)
        self._rows: Rows | None = None

    def _made(self) -> Any:
        if self._closed:
            raise RuntimeError(f"{self!r} was closed: choose the environments again")
        whole = self._env._made()
        if self._rows is None or self._rows.whole is not whole:
            self._rows = Rows(whole, self._workers, self._env.num_workers)
        return self._rows

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_rows": None}

    def _new_recipe(self) -> Recipe:
        raise TypeError(
            f"expected an environment that can be made anew, got {self!r}, which shares those of another"
        )

    def __repr__(self) -> str:
        return f"{self._env!r}[{', '.join(map(str, self._workers))}]"


class Rows:
    """A handle of some environments."""

    def __init__(self, whole: EnvHandle, workers: list[int], number: int) -> None:
        self.whole = whole
        self._all = whole.describe()["num_envs"]
        each = self._all // number
        self._rows = [worker * each + env for worker in workers for env in range(each)]

    def describe(self) -> dict[str, Any]:
        return {**self.whole.describe(), "num_envs": len(self._rows), "is_batched": True}

    def reset(self, envs: Sequence[int], seeds: Sequence[int | None]) -> list[Any]:
        seen = self.whole.reset([self._rows[env] for env in envs], seeds)
        return [values[self._rows] for values in seen]

    def step(self, actions: Sequence[Any]) -> tuple[list[Any], ...]:
        spread = []
        for values in actions:
            whole = numpy.zeros((self._all, *values.shape[1:]), values.dtype)
            whole[self._rows] = values
            spread.append(whole)
        stepped: tuple[Any, ...] = self.whole.step(spread, sorted(self._rows))
        seen, *outcomes = stepped
        return [values[self._rows] for values in seen], *(
            [values[row] for row in self._rows] for values in outcomes
        )


def _chosen(index: object, number: int) -> list[int]:
    """Numbers of environments out of ``number``."""
    if isinstance(index, slice):
        chosen = list(range(number))[index]
    else:
        given = index.tolist() if hasattr(index, "tolist") else index
        listed: list[Any] = list(given) if isinstance(given, (list, tuple, range)) else [given]
        if any(type(worker) is not int for worker in listed):
            raise TypeError(f"expected the numbers of environments or a slice, got {index!r}")
        if outside_of := [worker for worker in listed if not -number <= worker < number]:
            raise IndexError(f"there are {number} environments, got {outside_of[0]}")
        chosen = [worker % number for worker in listed]
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(
            f"expected one environment of {number} at least, and each once, got {index!r}"
        )
    return chosen


class ParallelArguments(BatchedArguments):
    """The arguments of environments that step side by side."""

    num_sub_threads: int = argument(
        "threads that libraries use in each process", default=1, check=at_least(1)
    )
    serial_for_single: bool = argument("step a single environment in this process", default=False)
    shutdown_timeout: float = argument(
        "seconds that processes have to end in `close`, before they are killed", default=10.0
    )
    step_timeout: float | None = argument(
        "seconds after which a process is taken for frozen and killed",
        more="counted from the start of a step or reset",
        default=None,
        check=seconds_or_none,
    )
    daemon: bool = ignored("the processes end with this one in any case", default=False)
    mp_start_method: str | None = ignored("each process is a new interpreter", default=None)
    share_individual_td: bool | None = ignored(_SHARED, default=None)
    shared_memory: bool = ignored(_SHARED, default=True)
    memmap: bool = ignored(_SHARED, default=False)


class ParallelEnv(SerialEnv):
    """As :class:`SerialEnv`, but the environments step side by side: functions and environments of
    Python run in a process each, which starts when it is first needed. Environments known to be
    native are so fast that they step one after the other in this process.

    What this class does not have is asked of the environments: ``env.spec`` is a list with the
    attribute of each, ``env.render()`` one with what the method of each returns. What an
    environment raises is raised here, with a note that says which one it was.

    Raises:
        TypeError: an unknown argument; when processes start, something that cannot be pickled,
            which the error names.
        RuntimeError: when it is stepped, a process has ended; the error says how, and which one.

    Example:
        >>> from windrow.envs import GymEnv, ParallelEnv
        >>> env = ParallelEnv(2, lambda: GymEnv("CartPole-v1", backend="gymnasium"))
        >>> env.rollout(5, break_when_any_done=False).shape
        torch.Size([2, 5])
        >>> env.close()
    """

    _takes_states = True
    #: Whether others warn for all of its members.
    _is_quiet = False
    _door = setup.MEMBER

    @takes(ParallelArguments)
    def __init__(self, arguments: ParallelArguments) -> None:
        self._set(arguments)
        self._is_single = self.num_workers == 1 and arguments.serial_for_single
        self._threads, self._timeout = arguments.num_sub_threads, arguments.shutdown_timeout
        self._step_timeout = arguments.step_timeout
        self._members = _windrow.ParallelMembers() if _PROCESSES else None

    def _new_recipe(self) -> Many:
        recipe = super()._new_recipe()
        if recipe.is_native or self._is_single:
            return recipe
        if self._members is None:
            warn_of_turns()
            return recipe
        # One that makes several is pickled once, and once more for the first member, which warns
        # for all.
        sent: dict[tuple[int, int, bool], bytes] = {}

        def pickled(make: object, kwargs: dict[str, Any] | None, is_quiet: bool) -> bytes:
            known = id(make), id(kwargs), is_quiet
            if known not in sent:
                sent[known] = setup.member(make, kwargs or None, self._door, is_quiet=is_quiet)
            return sent[known]

        given = enumerate(zip(self._makers, self._kwargs, strict=True))
        members = tuple(
            pickled(make, kwargs, self._is_quiet or number > 0) for number, (make, kwargs) in given
        )
        return Parallel(
            recipe.members,
            threads=self._threads,
            timeout=self._timeout,
            step_timeout=self._step_timeout,
            sent=members,
            live=self._members,
        )

    def _remote(self) -> list[Any]:
        """The environments, where they are. Processes start, if there are none."""
        members = vars(self).get("_members")
        if members is not None and not members.is_open():
            self._made()
        return (
            [Remote(members, member) for member in range(self.num_workers)]
            if members is not None and members.is_open()
            else []
        )

    def __getattr__(self, name: str) -> Any:
        # Names with an underscore are asked for by the interpreter, by pickle and by windrow
        # itself.
        found = [] if name.startswith("_") else [getattr(remote, name) for remote in self._remote()]
        if not found:
            raise _fence.lacking(self, name)
        if callable(found[0]):
            return lambda *args, **kwargs: [method(*args, **kwargs) for method in found]
        return found

    def state_dict(self) -> dict[str, Any]:
        """The states of the environments, under ``"worker<i>"``; nothing where none has any."""
        states = {
            f"worker{member}": remote._ask("states") for member, remote in enumerate(self._remote())
        }
        return states if any(states.values()) else {}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Takes what :meth:`state_dict` gave."""
        if not state_dict or not (remotes := self._remote()):
            return super().load_state_dict(state_dict, strict)
        for member, remote in enumerate(remotes):
            remote._ask("load_states", dict(state_dict[f"worker{member}"]))

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Ends the processes, which close their environments; those that take longer than
        ``shutdown_timeout`` are killed.
        """
        members = vars(self).get("_members")
        if self._handle is not None and members is not None:
            members.close()
        super().close(raise_if_closed=raise_if_closed)


@functools.cache
def warn_of_turns() -> None:
    """Says once that environments written in Python take turns."""
    turns = (
        "environments written in Python share the interpreter's lock: in threads they take turns"
    )
    warn(turns)
