"""How worker processes are started: the interpreter's command line, and the process that forks
them.
"""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from types import FunctionType, ModuleType
from typing import Any

from windrow import _fence, _windrow
from windrow.processes.pickling import NoProcesses, pickler

#: Variables that set how many threads libraries use. Workers that use several each would take
#: turns.
THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
#: What a nursery imports, the second only where workers need torch. Nothing of the user's: its
#: import could start threads, or differ from one worker to the next.
_MODULES = ("numpy", "cloudpickle", "windrow.collectors")
_TORCH = ("torch", "tensordict.nn", "windrow.policies.torch_policy")


def program(
    threads: int, warm: bool, called: str
) -> tuple[str, list[str], dict[str, str], tuple[_windrow.Nursery, bytes] | None]:
    """The interpreter as a worker: its path, arguments, and variables that are set beside those of
    this process. Its libraries use so many ``threads``, unless the user has set their variables.
    The nursery that forks it, and what it is told, where that can be: libraries have one thread in
    all that a nursery forks, and torch alone takes more. A ``warm`` one has imported torch.

    Args:
        called: the module whose functions the extension calls in a worker: a nursery imports it.

    Raises:
        NoProcesses: nobody knows where the interpreter is, as in a program that embeds it.
    """
    if not sys.executable:
        raise NoProcesses.said(
            lambda door: (
                f"{door.who} needs the path of the interpreter, but sys.executable is empty: {door.instead}"
            )
        )
    # Those by which this interpreter was started, such as -O and -W. A worker that runs in another
    # folder's name does not look there first: -P.
    flags = [*subprocess._args_from_interpreter_flags(), "-P", "-m"]  # type: ignore[attr-defined]
    limits = {name: str(threads) for name in THREADS if name not in os.environ}
    # Modules are found where they are found here.
    path = [os.path.abspath(entry) for entry in sys.path]
    variables = {
        "PYTHONPATH": os.pathsep.join(path),
        "WINDROW_PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    forked = None
    if warm or (threads == 1 and len(limits) == len(THREADS)):
        asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
        request = (
            os.getpid(),
            path,
            {**os.environ, **limits},
            int(asked) if asked.isdecimal() else threads,
        )
        forked = _nursery(flags, variables, warm, called), pickle.dumps(request)
    return sys.executable, [*flags, "windrow.processes.worker"], {**limits, **variables}, forked


_nurseries: dict[bool, tuple[Any, _windrow.Nursery]] = {}
"""The nurseries of this process, with torch and without, and what each was started with."""


def _nursery(
    flags: list[str], variables: dict[str, str], warm: bool, called: str
) -> _windrow.Nursery:
    """The process that forks workers. Another one where this interpreter, or what a process reads
    as it starts, is another now.
    """
    read = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PYTHON", "LD_", "MALLOC_"))
    }
    modules = [
        *_MODULES,
        called,
        *(_TORCH if warm else ()),
        *([f"{_fence.LIBRARY}.envs"] if warm and _fence.loaded("envs") else []),
    ]
    start = os.getpid(), sys.executable, flags, read, modules
    if warm not in _nurseries or _nurseries[warm][0] != start:
        # Threads of libraries would keep it from forking, and so would a look at GPUs that uses
        # them.
        variables = {
            **variables,
            **dict.fromkeys(THREADS, "1"),
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        }
        _nurseries[warm] = (
            start,
            _windrow.Nursery(
                sys.executable, [*flags, "windrow.processes.nursery", *modules], variables
            ),
        )
    return _nurseries[warm][1]


def uses_torch(core: object, environments: object) -> bool:
    """Whether workers import torch, as far as this process knows: for the policy ``core``, in the
    form that the engine takes, or as they read ``environments``.
    """
    if isinstance(core, list):
        return True
    names, modules = set(), set()

    class Watching(pickler()):  # type: ignore[misc]
        def persistent_id(self, part: object) -> None:
            if isinstance(part, (str, ModuleType)):
                # A function imports what is among its names.
                names.add(part if isinstance(part, str) else part.__name__)
            elif (
                isinstance(part, (type, FunctionType))
                and "<" not in part.__qualname__
                and part.__module__ != "__main__"
            ):
                modules.add(part.__module__)

    try:
        Watching(io.BytesIO()).dump(environments)
    except Exception:
        # Whoever sends them says why they cannot be sent.
        return False
    for module in modules:
        parts = vars(sys.modules[module]).values() if module in sys.modules else ()
        names |= {module, *(part.__name__ for part in parts if isinstance(part, ModuleType))}
    return any(name.partition(".")[0] in ("torch", _fence.LIBRARY, "tensordict") for name in names)
