"""Environments that step independently: a call sends them commands, and another receives the
answers that have come.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from windrow import _needs, _windrow
from windrow._arguments import Arguments, argument, each_of, ignored, one_of, takes
from windrow._lazy import tensordict as td, torch
from windrow._numbers import at_least, cores, real, whole, whole_or_none
from windrow._types import Device, Envs
from windrow._windrow import IMPATIENCE, PATIENCE, EnvPool
from windrow.collectors._ending import ALIVE
from windrow.envs._base import EnvBase
from windrow.envs._convert import of
from windrow.envs._described import Facts
from windrow.envs._recipe import Many, Parallel, Recipe
from windrow.processes import setup
from windrow.processes.pickling import Door

Index = int | Sequence[int] | None
#: Of the engine: which members have answered, what they have returned, and what followed where they
#: began an episode.
Answers = tuple[list[int], tuple[Any, ...], list[Any] | None]


class PoolArguments(Arguments):
    """The arguments of pools of environments."""

    env_makers: Envs = argument(
        "a list of environments, or of functions that make one", kw_only=False
    )
    backend: str = argument(
        "whether each environment of Python has a thread or a process",
        more="threads step environments known to be native in any case",
        default="threading",
        check=one_of("threading", "multiprocessing"),
    )
    stack: str = argument(
        "how rows that were sent separately are stacked",
        more='``"dense"`` needs the same entries in all, ``"maybe_dense"`` and ``"lazy"`` do not',
        default="dense",
        check=one_of("dense", "maybe_dense", "lazy"),
    )
    create_env_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None = argument(
        "passed to the functions; a dict for all, or a list with one for each", default=None
    )
    num_threads: int | None = argument(
        "threads that step native environments; by default as many as there are processors",
        default=None,
        check=at_least(1),
    )
    device: Device | None = argument("where tensors are put", default=None)
    exchange: str | None = argument(
        '"queue", "shm" or "auto", which do the same: processes share memory',
        more='``"shm"`` needs processes',
        default=None,
        check=one_of("queue", "shm", "auto"),
    )
    envs_per_worker: int = ignored(
        "each environment has a thread or a process of its own", default=1
    )
    worker_affinity: object = ignored("the system places processes", default=None)


class AsyncEnvPool(EnvBase):
    """Environments that step independently, batch size ``[n, *child]``: commands are sent to some
    of them, and answers are received from those that are ready first.

    A call that ends with ``_send`` tells environments what to do and returns at once. Which ones,
    ``env_index`` says, a number or a list, or else the entry ``"env_index"`` of the TensorDict;
    without either, all. The call that ends with ``_recv`` waits for ``min_get`` answers and takes
    what else is there by then, but no more than ``max_get``, those first that were done first. With
    a ``timeout`` in seconds, it waits so long for ``max_get``, by default for all. Results are in
    the order of environments, which their entry ``"env_index"`` names. ``env_index=i`` in both
    calls sends and receives environment ``i`` alone, without a dimension for it. Calls may come
    from several threads.

    ``reset``, ``step``, ``step_and_maybe_reset``, ``rollout`` and seeds are those of a
    :class:`SerialEnv`. After Ctrl-C in one of them, the next command waits for what was not
    received, and drops it. A collector that is given a pool steps its environments in lockstep.

    Raises:
        RuntimeError: a call out of order, which names the call that was expected and the
            environment; a process has ended.
        TimeoutError: there are fewer than ``min_get`` answers after ``timeout`` seconds. They stay
            for the next call.
        ValueError: ``min_get`` and ``max_get`` contradict each other; environments differ in what
            they observe or accept, whatever ``stack`` is: make a pool for each kind.

    What an environment raises is raised by the call that waits for it, with a note that says which
    one it was. The answers of the others stay, and the environment has to be reset.
    """

    _env_idx_key = "env_index"
    _BACKEND: str | None = None
    #: How many answers a wait is for, unless it says so.
    min_get = 1

    def __new__(cls, *args: Any, backend: str = "threading", **kwargs: Any) -> Any:
        """A pool of the class for its backend."""
        kinds = {"threading": ThreadingAsyncEnvPool, "multiprocessing": ProcessorAsyncEnvPool}
        return super().__new__(kinds.get(backend, cls) if cls is AsyncEnvPool else cls)

    @takes(PoolArguments)
    def __init__(self, arguments: PoolArguments) -> None:
        super().__init__(arguments.device)
        makers = arguments.env_makers
        self.env_makers: list[Any] = (
            list(makers)
            if isinstance(makers, Sequence) and not isinstance(makers, str)
            else [makers]
        )
        self.create_env_kwargs = each_of(
            "create_env_kwargs",
            arguments.create_env_kwargs or {},
            len(self.env_makers),
            "environments",
        )
        self.backend, self.stack = self._BACKEND or arguments.backend, arguments.stack
        if arguments.exchange == "shm" and self.backend != "multiprocessing":
            raise ValueError('exchange="shm" is for processes: it needs backend="multiprocessing"')
        self._pool: EnvPool | None = None
        self._threads = arguments.num_threads or cores()
        #: By environment: the TensorDict of its last command, and its row there.
        self._sent: dict[int, tuple[Any, int]] = {}
        self._made()

    def _new_recipe(self) -> Recipe:
        given = zip(self.env_makers, self.create_env_kwargs, strict=True)
        return Many(tuple(of(make, kwargs or None) for make, kwargs in given))

    def _made(self) -> Any:
        if self._closed:
            raise RuntimeError(f"{type(self).__name__} was shut down: make another one")
        if self._pool is None:
            _needs.torch(type(self).__name__)
            ALIVE.add(self)
            recipe: Any = super()._recipe()
            members = self._members(recipe.members)
            self._pool = EnvPool(
                members, any(isinstance(member, Parallel) for member in members), self._threads
            )
        return self._pool

    def _recipe(self, *, plain: bool = False) -> Recipe:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(PATIENCE)
        return super()._recipe(plain=plain)

    def _members(self, recipes: tuple[Recipe, ...]) -> tuple[Recipe, ...]:
        return recipes

    def _known(self) -> Facts:
        if self._facts is None:
            facts = Facts(self._made())
            self._child = tuple(self._made().member_shape())
            facts.batch = (len(self.env_makers), *self._child)
            self._facts = facts
        return self._facts

    # All at once

    def reset(
        self,
        tensordict: "td.TensorDictBase | None" = None,
        *,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> "td.TensorDictBase":
        """As of any environment; results carry ``"env_index"``."""
        return self._named(super().reset(tensordict, seed=seed, options=options))

    def step(self, tensordict: "td.TensorDictBase") -> "td.TensorDictBase":
        """As of any environment; results carry ``"env_index"``."""
        return self._named(super().step(tensordict))

    def step_and_maybe_reset(
        self, tensordict: "td.TensorDictBase"
    ) -> "tuple[td.TensorDictBase, td.TensorDictBase]":
        """As of any environment; results carry ``"env_index"``."""
        self._send("async_step_and_maybe_reset", tensordict, range(len(self.env_makers)))
        return self._pair(self._made().recv_all("async_step_and_maybe_reset"))

    def step_mdp(self, next_tensordict: "td.TensorDictBase") -> "td.TensorDictBase":
        """The root that follows a step, where no episode has ended."""
        root, index = (
            super().step_mdp(next_tensordict),
            next_tensordict.get(self._env_idx_key, None),
        )
        return root if index is None else root.set(self._env_idx_key, index)

    # Each by commands of its own

    def async_reset_send(
        self, tensordict: "td.TensorDictBase | None" = None, env_index: Index = None
    ) -> None:
        """Begins an episode in environments: in all of them, unless ``env_index`` or the TensorDict
        says which. Seeds given by :meth:`set_seed` are taken up. Of several environments in one
        member, an entry ``"_reset"`` names those that begin.
        """
        members, rows = self._index(tensordict, env_index)
        size = self._known().num_envs // len(self.env_makers)
        envs = [member * size + row for member in members for row in range(size)]
        asked = None if rows is None else rows.get("_reset", None)
        if asked is not None:
            envs = [
                env
                for env, is_asked in zip(
                    envs, asked.reshape(len(envs), -1).any(-1).tolist(), strict=True
                )
                if is_asked
            ]
        given: list[int | None] = (
            [None] * self._known().num_envs if self._seeds is None else [*self._seeds]
        )
        self._made().reset_send(envs, [given[env] for env in envs])
        if self._seeds is not None:
            for env in envs:
                given[env] = None
            self._seeds = given if any(seed is not None for seed in given) else None  # type: ignore[assignment]

    def async_reset_recv(
        self,
        min_get: int | None = None,
        env_index: int | None = None,
        *,
        max_get: int | None = None,
        timeout: float | None = None,
    ) -> "td.TensorDictBase":
        """The first observations."""
        members, (seen, *_), _ = self._receive("async_reset", min_get, env_index, max_get, timeout)
        root = self._tensordict(seen, batch=(len(members), *self._child)).exclude(*self.reward_keys)
        return self._alone(self._named(root, members), env_index)

    def async_step_send(self, tensordict: "td.TensorDictBase", env_index: Index = None) -> None:
        """Sends environments the actions in ``tensordict``."""
        self._send("async_step", tensordict, env_index)

    def async_step_recv(
        self,
        min_get: int | None = None,
        env_index: int | None = None,
        *,
        max_get: int | None = None,
        timeout: float | None = None,
    ) -> "td.TensorDictBase":
        """What was sent, with what followed as ``"next"``."""
        return self._alone(
            self._record(self._receive("async_step", min_get, env_index, max_get, timeout)),
            env_index,
        )

    def async_step_and_maybe_reset_send(
        self, tensordict: "td.TensorDictBase", env_index: Index = None
    ) -> None:
        """As :meth:`async_step_send`; environments whose episode ends begin another one."""
        self._send("async_step_and_maybe_reset", tensordict, env_index)

    def async_step_and_maybe_reset_recv(
        self,
        min_get: int | None = None,
        env_index: int | None = None,
        *,
        max_get: int | None = None,
        timeout: float | None = None,
    ) -> "tuple[td.TensorDictBase, td.TensorDictBase]":
        """What was sent, with what followed as ``"next"``; and the root to act on next."""
        answers = self._receive("async_step_and_maybe_reset", min_get, env_index, max_get, timeout)
        record, root = self._pair(answers)
        return self._alone(record, env_index), self._alone(root, env_index)

    def _index(self, tensordict: Any, env_index: Any) -> tuple[list[int], Any]:
        """The members that are meant, and ``tensordict`` with a row for each and without their
        numbers.
        """
        self._known()
        given = (
            None
            if env_index is not None or tensordict is None
            else tensordict.get(self._env_idx_key, None)
        )
        if (known := getattr(given, "__dict__", {}).get("_members")) is not None:
            env_index = known
        elif given is not None:
            env_index = tensordict[self._env_idx_key]
            env_index = env_index.tolist() if hasattr(env_index, "tolist") else env_index
            while isinstance(env_index, list) and env_index and isinstance(env_index[0], list):
                env_index = [inner[0] for inner in env_index]
            if not isinstance(env_index, list) and tensordict.shape == (1, *self._child):
                env_index = [env_index]
            elif isinstance(env_index, list) and tensordict.shape == self._child:
                env_index = env_index[0]
        # It is laborious to index.
        rows = None if tensordict is None else tensordict.exclude(self._env_idx_key)
        if env_index is None:
            env_index = range(len(self.env_makers))
        if isinstance(env_index, (range, list, tuple)) or getattr(env_index, "ndim", None):
            members = [operator.index(member) for member in env_index]
        else:
            members, rows = [operator.index(env_index)], None if rows is None else rows.unsqueeze(0)
        if rows is not None and rows.shape != (len(members), *self._child):
            raise ValueError(
                f"expected a TensorDict of shape {(len(members), *self._child)} for environments {members}, got {tuple(rows.shape)}: "
                'env_index, or its entry "env_index", says which they are'
            )
        return members, rows

    def _send(self, call: str, tensordict: "td.TensorDictBase", env_index: Index) -> None:
        members, rows = self._index(tensordict, env_index)
        facts = self._known()
        actions = [
            facts.to_action(rows, leaf, len(members) * (facts.num_envs // len(self.env_makers)))
            for leaf in facts.action
        ]
        kept = {member: self._sent.get(member) for member in members}
        # Before the command is sent: an answer may be received by another thread at once.
        self._sent.update((member, (rows, row)) for row, member in enumerate(members))
        try:
            self._made().step_send(members, actions, call == "async_step_and_maybe_reset")
        except BaseException:
            self._sent.update((member, sent) for member, sent in kept.items() if sent is not None)
            raise

    def _receive(
        self,
        call: str,
        min_get: int | None,
        env_index: int | None,
        max_get: int | None,
        timeout: float | None,
    ) -> Answers:
        env = None if env_index is None else operator.index(env_index)
        seconds = None if timeout is None else real("timeout", timeout)
        self._known()
        least, most = (
            whole("min_get", self.min_get if min_get is None else min_get, 1),
            whole_or_none("max_get", max_get, 1),
        )
        return self._made().recv(call, least, most, env, seconds)

    def _record(self, answers: Answers) -> "td.TensorDictBase":
        members, stepped, _ = answers
        sent = [self._sent.pop(member) for member in members]
        first, rows = sent[0][0], [row for _, row in sent]
        if any(rest is not first for rest, _ in sent):
            told: Any = self._stacked([rest[row] for rest, row in sent])
        else:
            told = first.clone(False) if rows == list(range(len(first))) else first[rows]
        return self._named(self._stepped(told, stepped, (len(members), *self._child)), members)

    def _pair(self, answers: Answers) -> tuple[Any, Any]:
        record = self._record(answers)
        root = self.step_mdp(record)
        if answers[2] is None:
            return record, root
        begun = self._tensordict(answers[2], batch=tuple(record.shape)).exclude(*self.reward_keys)
        begun = self._begun(begun, root, root.get("done"))
        return record, begun.set(self._env_idx_key, root.get(self._env_idx_key))

    def _stacked(self, rows: list[Any]) -> "td.TensorDictBase":
        stack = {"dense": torch.stack, "maybe_dense": td.maybe_dense_stack, "lazy": td.lazy_stack}[
            self.stack
        ]
        return stack(rows)

    def _named(
        self, tensordict: "td.TensorDictBase", members: Sequence[int] | None = None
    ) -> "td.TensorDictBase":
        """``tensordict`` with the numbers of its environments."""
        members = range(len(self.env_makers)) if members is None else members
        empty = td.TensorDict({}, batch_size=self._child)
        # A third of the time that the constructor takes.
        numbers = [
            td.NonTensorData.from_tensordict(empty.copy(), {"data": member}) for member in members
        ]
        stack = td.NonTensorStack(*numbers)
        # To read them out of the stack takes a hundred times as long.
        vars(stack)["_members"] = list(members)
        return tensordict.set(self._env_idx_key, stack)

    @staticmethod
    def _alone(tensordict: "td.TensorDictBase", env_index: int | None) -> "td.TensorDictBase":
        return tensordict if env_index is None else tensordict[0]

    # What TorchRL's have

    @property
    def env_batch_sizes(self) -> list[Any]:
        """The batch size of each environment."""
        self._known()
        return [torch.Size(self._child)] * len(self.env_makers)

    #: As TorchRL calls what needs no agreement on fixed shapes.
    resolved_exchange = "queue"
    exchange_keys: tuple[Any, ...] = ()

    def stats(self, *, reset: bool = False) -> dict[str, float | int]:
        """Nothing, as of TorchRL's pools whose ``resolved_exchange`` is ``"queue"``."""
        return {}

    # Its end

    def shutdown(self, timeout: float = 10.0) -> None:
        """Ends the environments, and waits for that; what was not received is lost. Processes that
        are in the middle of a step are killed after half a second.

        Raises:
            RuntimeError: an environment did not return within ``timeout`` seconds; its thread is
                left behind.
        """
        pool, self._pool, self._closed = self._pool, None, True
        self._sent.clear()
        if pool is not None:
            pool.shutdown(timeout)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """As :meth:`shutdown`."""
        self.shutdown()

    def _leave(self, seconds: float) -> bool:
        """Ends without errors, before the interpreter does: whether all threads have ended."""
        self._closed = True
        return self._pool is None or self._pool.leave(seconds)

    def __exit__(self, *exc: object) -> None:
        if exc[0] is None:
            return self.shutdown()
        # The error that leaves the context stays the one that is raised.
        self._leave(IMPATIENCE if exc[0] is KeyboardInterrupt else PATIENCE)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_sent": {}, "_pool": None}

    def __del__(self) -> None:
        self._pool = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env_makers!r})"


class ThreadingAsyncEnvPool(AsyncEnvPool):
    """An :class:`AsyncEnvPool` in threads of this process. Environments of Python share the
    interpreter's lock, and wait at the same time.
    """

    _BACKEND = "threading"


class ProcessorAsyncEnvPool(AsyncEnvPool):
    """An :class:`AsyncEnvPool` of environments in a process each, on Linux; in threads elsewhere.
    Native ones are in threads in any case.

    Raises:
        TypeError: something that cannot be pickled, which the error names.
    """

    _BACKEND = "multiprocessing"

    def _members(self, recipes: tuple[Recipe, ...]) -> tuple[Recipe, ...]:
        if all(recipe.is_native for recipe in recipes) or not hasattr(_windrow, "ParallelMembers"):
            return recipes

        def sent(number: int, make: object, kwargs: dict[str, Any] | None) -> bytes:
            door = Door('backend="multiprocessing"', instead='choose backend="threading"')
            return setup.member(make, kwargs or None, door, is_quiet=number > 0)

        given = enumerate(zip(recipes, self.env_makers, self.create_env_kwargs, strict=True))
        return tuple(
            Parallel((recipe,), sent=(sent(number, make, kwargs),), patient=True)
            for number, (recipe, make, kwargs) in given
        )
