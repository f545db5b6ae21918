"""What lives in worker processes, as the collector's process sees it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windrow._codecs import codec
from windrow._data import Data
from windrow._windrow import CollectorCore
from windrow.processes.pickling import dumps

if TYPE_CHECKING:
    from windrow._windrow import EvaluatorProcess, ParallelMembers

#: Seconds that the end of a collector waits for states of environments.
_PATIENCE = 0.2
_OBJECTS = codec(True)

Path = tuple[tuple[str, Any], ...]
"""Names of attributes, and keys in brackets, from a worker's environment on. If the worker has
several environments, the path begins with the place of one.
"""


class Remote:
    """An object in a worker process, found from the environment there by ``path``.

    Attributes and keys are read there, between two parts that the worker fills. Plain values,
    arrays, tensors and specs come back as copies; anything else is a ``Remote`` again. A method is
    called there. Setting an attribute sets it there. ``answers`` reads the answers: objects too if
    this program has started the process on this machine, otherwise only data.
    """

    def __init__(
        self,
        core: CollectorCore | EvaluatorProcess | ParallelMembers,
        worker: int,
        path: Path = (),
        answers: Data = _OBJECTS,
    ) -> None:
        vars(self).update(_core=core, _worker=worker, _path=path, _answers=answers)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Asked for by the interpreter and by pickle, which would copy what is there.
            raise AttributeError(name)
        return self._found((*self._path, ("attribute", name)))

    def __getitem__(self, key: object) -> Any:
        return self._found((*self._path, ("key", key)))

    def __setattr__(self, name: str, value: object) -> None:
        self._ask("set", self._path, name, value)

    def __repr__(self) -> str:
        return f"<in worker {self._worker}: {self._ask('repr', self._path)}>"

    def _found(self, path: Path) -> object:
        what, value = self._ask("get", path)
        if what == "value":
            return value
        return (RemoteMethod if what == "callable" else Remote)(
            self._core, self._worker, path, self._answers
        )

    def _ask(self, *request: object) -> Any:
        return self._read(self._answer(*request))

    def _answer(self, *request: object) -> bytes:
        return self._core.call_worker(self._worker, dumps(request))

    def _read(self, answer: bytes) -> object:
        is_raised, sent = codec(False).read(answer)
        if is_raised:
            raise self._answers.read_error(sent)
        return self._answers.read(sent)


class RemoteMethod(Remote):
    """A :class:`Remote` that can be called, with arguments that can be pickled. So can what it
    returns.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask("call", self._path, args, kwargs)


class RemoteEnv(Remote):
    """The environment of a worker process."""

    def apart(self, count: int) -> list[Remote]:
        """Proxies of the ``count`` environments that step together in the worker."""
        return (
            [self]
            if count == 1
            else [Remote(self._core, self._worker, (("env", place),)) for place in range(count)]
        )

    def states(self) -> dict[str, Any]:
        """The states of the worker's environments; of a worker that has ended, those that were
        known last.
        """
        try:
            answer = self._answer("states")
        except (RuntimeError, ValueError):
            return vars(self).get("_known", {})
        vars(self)["_known"] = self._read(answer)
        return vars(self)["_known"]

    def dump(self, step: int) -> None:
        """Makes recorders among the environment's transforms write what they have recorded."""
        self._ask("dump", step)

    def load_states(self, states: Mapping[str, Any]) -> None:
        """Gives them states that :meth:`states` returned."""
        if states:
            self._ask("load_states", dict(states))


def remember(envs: list[Any]) -> None:
    """Asks for the states of all ``envs`` that are in processes, which are about to end: later
    calls of their ``states`` return them. Does not wait for a worker whose step or part takes long.
    """

    def ask(env: RemoteEnv) -> None:
        with contextlib.suppress(Exception):
            env.states()

    until = time.monotonic() + _PATIENCE
    asking = [
        threading.Thread(target=ask, args=(env,), daemon=True)
        for env in envs
        if isinstance(env, RemoteEnv)
    ]
    # No thread can be started at the end of the interpreter.
    with contextlib.suppress(RuntimeError):
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(max(0.0, until - time.monotonic()))
