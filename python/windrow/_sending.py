"""What a collector and its worker processes send each other beside frames: code, and exceptions. Both travel pickled."""

from __future__ import annotations

import functools
import io
import os
import pickle
import subprocess
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from windrow._windrow import tensors_to_bytes
from windrow.envs import _recipe

if TYPE_CHECKING:
    from windrow._windrow import Nursery

#: By these, libraries are told how many threads to use. Workers that use several each would take turns.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
#: What a nursery imports, the second only where workers need torch. Nothing of the user's: its import could start threads, or differ from
#: one worker to the next.
_MODULES = ("numpy", "cloudpickle", "windrow.collectors", "windrow.envs._specs")
_TORCH = ("torch", "tensordict.nn", "windrow._torch_policy")
#: Exceptions that take more bytes than this are sent as text, of which so many characters are left.
_LONG = 1 << 20


class NoProcesses(RuntimeError):
    """Workers cannot be processes; in threads the same collector would do."""


class Unsendable(NoProcesses, TypeError):
    """Something that a worker process needs cannot be pickled."""


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker process, as the ``__cause__`` of that exception here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lines = text

    def __str__(self) -> str:
        return f"in a worker process:\n{self.lines}"


def program(threads: int, warm: bool) -> tuple[str, list[str], dict[str, str], tuple[Nursery, bytes] | None]:
    """The interpreter as a worker: its path, arguments, and variables that are set beside those of this process. Its libraries use
    so many ``threads``, unless the user has set their variables. The nursery that forks it, and what it is told, where that can be:
    libraries have one thread in all that a nursery forks, and torch alone takes more. A ``warm`` one has imported torch.

    Raises:
        NoProcesses: nobody knows where the interpreter is, as in a program that embeds it.
    """
    if not sys.executable:
        raise NoProcesses(
            'placement="processes" needs the path of the interpreter, but sys.executable is empty: choose placement="threads"'
        )
    # Those by which this interpreter was started, such as -O and -W. A worker that runs in another folder's name does not look there
    # first: -P.
    flags = [*subprocess._args_from_interpreter_flags(), "-P", "-m"]  # type: ignore[attr-defined]
    limits = {name: str(threads) for name in _THREADS if name not in os.environ}
    # Modules are found where they are found here.
    path = [os.path.abspath(entry) for entry in sys.path]
    variables = {"PYTHONPATH": os.pathsep.join(path), "WINDROW_PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    forked = None
    if warm or (threads == 1 and len(limits) == len(_THREADS)):
        asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
        request = os.getpid(), path, {**os.environ, **limits}, int(asked) if asked.isdecimal() else threads
        forked = _nursery(flags, variables, warm), pickle.dumps(request)
    return sys.executable, [*flags, "windrow._worker"], {**limits, **variables}, forked


_nurseries: dict[bool, tuple[Any, Nursery]] = {}
"""The nurseries of this process, with torch and without, and what each was started with."""


def _nursery(flags: list[str], variables: dict[str, str], warm: bool) -> Nursery:
    """The process that forks workers. Another one where this interpreter, or what a process reads as it starts, is another now."""
    from windrow._windrow import Nursery

    read = {name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "LD_", "MALLOC_"))}
    modules = [*_MODULES, *(_TORCH if warm else ()), *(["torchrl.envs"] if warm and "torchrl.envs" in sys.modules else [])]
    start = os.getpid(), sys.executable, flags, read, modules
    if warm not in _nurseries or _nurseries[warm][0] != start:
        # Threads of libraries would keep it from forking, and so would a look at GPUs that uses them.
        variables = {**variables, **dict.fromkeys(_THREADS, "1"), "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        _nurseries[warm] = start, Nursery(sys.executable, [*flags, "windrow._nursery", *modules], variables)
    return _nurseries[warm][1]


def uses_torch(core: Any, environments: Any) -> bool:
    """Whether workers import torch, as far as this process knows: for the policy ``core``, in the form that the engine takes, or as they
    read ``environments``."""
    if isinstance(core, list):
        return True
    names, modules = set(), set()

    class Watching(_pickler()):  # type: ignore[misc]
        def persistent_id(self, part: Any) -> None:
            if isinstance(part, (str, ModuleType)):
                # A function imports what is among its names.
                names.add(part if isinstance(part, str) else part.__name__)
            elif isinstance(part, (type, FunctionType)) and "<" not in part.__qualname__ and part.__module__ != "__main__":
                modules.add(part.__module__)

    try:
        Watching(io.BytesIO()).dump(environments)
    except Exception:
        # Whoever sends them says why they cannot be sent.
        return False
    for module in modules:
        parts = vars(sys.modules[module]).values() if module in sys.modules else ()
        names |= {module, *(part.__name__ for part in parts if isinstance(part, ModuleType))}
    return any(name.partition(".")[0] in ("torch", "torchrl", "tensordict") for name in names)


def environments(
    env: Any, kwargs: dict[str, Any] | None, init_fn: Callable[[], object] | None, *, is_quiet: bool = False
) -> bytes:
    """How to make the environments ``env`` in another process, after a call of ``init_fn``. Windrow gives no warnings there if the process
    ``is_quiet``, or belongs to another worker than the first: each of many would warn of the same.

    Raises:
        NoProcesses: something that they are made of cannot be sent; the error names it.
    """
    recipe = _recipe.of(env, kwargs)
    if getattr(recipe, "own", False):
        # The worker has a copy, which nobody but the worker can close.
        recipe = replace(recipe, env=_recipe._Gift(recipe.env), own=False)  # type: ignore[call-arg,attr-defined]
    given = env.env if isinstance(env, _recipe.Beside) else env
    is_quiet = is_quiet or getattr(given, "number", 0) > 0
    sent = (_Secret(), _registered(), _number_type(), is_quiet, recipe, given, init_fn)
    return _pickled(sent, {"create_env_fn": given, "create_env_kwargs": kwargs, "init_fn": init_fn})


def member(
    env: Any,
    kwargs: dict[str, Any] | None = None,
    of: str = "ParallelEnv",
    instead: str = "take SerialEnv",
    *,
    is_quiet: bool = False,
) -> bytes:
    """How to make the environments ``env``, a member ``of`` something that errors name with what to do ``instead``, in another process.
    A member ``is_quiet`` where the first one warns for all.

    Raises:
        TypeError: as :func:`environments`.
    """
    from windrow.collectors._factory import Factory
    from windrow.collectors._workers import is_function

    try:
        return environments(Factory(env) if is_function(env) else env, kwargs, None, is_quiet=is_quiet)
    except TypeError as error:
        # Said of collectors elsewhere.
        told = str(error).replace('placement="processes" sends', f"{of} sends").replace('choose placement="threads"', instead)
        raise TypeError(told) from error.__cause__


def policy(core: Any) -> bytes:
    """The policy ``core``, in the form that the engine takes, for another process.

    A network's parameters are sent as bytes, so that the process can use it without torch.

    Raises:
        NoProcesses: something that it is made of cannot be sent; the error names it.
    """
    if isinstance(core, dict) and "remote" not in core:
        # In an actor they are bytes already.
        weights = core["weights"] if isinstance(core["weights"], bytes) else tensors_to_bytes(core["weights"])
        core = {**core, "weights": weights, "fallback": core["fallback"] and _makers(core["fallback"])}
    elif isinstance(core, list):
        core = _makers(core)
    return pickle.dumps(core)


def read_environments(sent: bytes) -> Any:
    """The recipe of the environments that :func:`environments` has sent."""
    _, specs, number_type, is_quiet, recipe, given, init_fn = pickle.loads(sent)
    _take_number_type(number_type)
    if is_quiet:
        warnings.filterwarnings("ignore", module=r"windrow\b")
    _register(specs)
    if init_fn is not None:
        init_fn()
    _asked.environment = given
    return recipe


class _Secret:
    """The key by which processes of ``multiprocessing`` know each other, which its own children inherit. Where this is read, the process
    takes the key over, so what is read after it may be a proxy of a ``Manager``.
    """

    def __reduce__(self) -> Any:
        process = sys.modules.get("multiprocessing.process")
        return _take_secret, (None if process is None else bytes(process.current_process().authkey),)


def _take_secret(key: bytes | None) -> None:
    if key is not None:
        from multiprocessing.process import current_process

        current_process().authkey = key


def surroundings() -> bytes:
    """What a process on any machine has to know before it can read what is the user's: where modules are, ids of Gymnasium, and torch's
    type of real numbers."""
    return pickle.dumps(([os.path.abspath(entry) for entry in sys.path], dumps((_registered(), _number_type()))))


def arrive(sent: bytes) -> None:
    """Takes over what :func:`surroundings` has told."""
    path, known = pickle.loads(sent)
    sys.path += [entry for entry in path if entry not in sys.path]
    specs, number_type = pickle.loads(known)
    _take_number_type(number_type)
    _register(specs)


def _register(specs: list[Any]) -> None:
    if specs:
        import gymnasium

        for spec in specs:
            gymnasium.registry.setdefault(spec.id, spec)


def read_policy(sent: bytes) -> Any:
    """The policy that :func:`policy` has sent, in the form that the engine takes."""
    return pickle.loads(sent)


def seed_torch(seed: int) -> bool:
    """Seeds torch, which begins every process with the same numbers, if this one has imported it; whether it has."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
    return torch is not None


def held_weights(policy: Any) -> str | None:
    """Where ``policy`` has weights that no copy of it follows: in a function, as in ``" uses net"``, not in a module of its own. None if
    it has none."""
    import torch

    is_module = isinstance(policy, torch.nn.Module)
    seen = set(map(id, (*policy.modules(), *policy.parameters()))) if is_module else set()

    def found(value: Any, path: str, depth: int = 6) -> str | None:
        # Large data are not looked through to the end.
        if not depth or id(value) in seen or len(seen) > 10_000 or isinstance(value, (type, str, bytes)):
            return None
        seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            return path if next(value.parameters(), None) is not None else None
        if isinstance(value, torch.Tensor):
            return path if value.requires_grad else None
        return next(filter(None, (found(part, path + name, depth - 1) for name, part in _parts(value))), None)

    if not is_module:
        return found(policy, "")
    entries = [entry for module in policy.modules() for entry in vars(module).items()]
    functions = [(name, value) for name, value in entries if isinstance(value, (FunctionType, partial))]
    return next(filter(None, (found(value, f".{name}") for name, value in functions)), None)


def _number_type() -> str | None:
    """Torch's default type of real numbers, where it is another than in a process that has just begun."""
    torch = sys.modules.get("torch")
    name = "float32" if torch is None else str(torch.get_default_dtype()).removeprefix("torch.")
    return None if name == "float32" else name


def _take_number_type(name: str | None) -> None:
    if name is not None:
        import torch

        torch.set_default_dtype(getattr(torch, name))


def _makers(makers: list[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Functions that do what ``makers`` do, which are read when they are called first."""
    return [partial(_make, _number_type(), _pickled(maker, {"policy": maker})) for maker in makers]


def _make(number_type: str | None, pickled: bytes) -> Any:
    _take_number_type(number_type)
    return pickle.loads(pickled)()


def _registered() -> list[Any]:
    """Ids of Gymnasium that another process does not know, since this program or a package of the user's has registered them."""
    gymnasium = sys.modules.get("gymnasium")
    if gymnasium is None:
        return []
    specs = []
    for spec in gymnasium.registry.values():
        entry = spec.entry_point
        if isinstance(entry, str) and entry.startswith("gymnasium.envs."):
            continue
        try:
            specs.append(replace(spec, entry_point=_elsewhere(entry)))
        except Exception:
            # Its own environments may not be wanted.
            continue
    return specs


def _elsewhere(entry: Any) -> Any:
    """The entry point of an id, which imports what it needs when it is called first."""
    return partial(_enter, dumps(entry)) if callable(entry) else entry


def _enter(pickled: bytes, **arguments: Any) -> Any:
    return pickle.loads(pickled)(**arguments)


def _pickled(value: Any, arguments: dict[str, Any]) -> bytes:
    """``value``, made of these ``arguments`` of the user's, as bytes.

    Raises:
        NoProcesses: a part of one cannot be pickled; the error names it.
    """
    try:
        return dumps(value)
    except NoProcesses:
        raise
    except Exception as error:
        for name, given in arguments.items():
            for path, culprit in _culprits(given, name):
                raise Unsendable(
                    f'placement="processes" sends {name} to each worker, but {path}, {_short(culprit)}, cannot be pickled: {error}. '
                    'Make it within the function, or choose placement="threads"'
                ) from error
        raise


def dumps(value: Any) -> bytes:
    """``value`` as bytes, functions and classes of a script or a notebook included.

    Raises:
        NoProcesses: cloudpickle is not installed.
        Exception: what pickle raises for a value that it cannot write.
    """
    with io.BytesIO() as file:
        _pickler()(file).dump(value)
        return file.getvalue()


class Sendable:
    """In the place of a function where that is pickled, which plain pickle can do then too, functions of a script included."""

    def __init__(self, value: Any) -> None:
        self.sendable = value

    def __reduce__(self) -> Any:
        return pickle.loads, (dumps(self.sendable),)

    def __deepcopy__(self, _: Any) -> Sendable:
        return self


def _itself(value: Any) -> Any:
    return value


@functools.cache
def _pickler() -> type[pickle.Pickler]:
    """Cloudpickle's, which also takes what ``torch.compile`` has compiled."""
    try:
        import cloudpickle
    except ModuleNotFoundError as error:
        raise NoProcesses(
            'placement="processes" needs cloudpickle: pip install cloudpickle, or choose placement="threads"'
        ) from error

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, Sendable):
                # In one piece with what is around it.
                return _itself, (value.sendable,)
            plain = _uncompiled(value)
            return super().reducer_override(value) if plain is None else (_compiled, plain)

    return Pickler


def _uncompiled(value: Any) -> tuple[Any, dict[str, Any]] | None:
    """The module or function that torch has compiled to ``value``, and the arguments known; None for anything else."""
    known: dict[str, Any] = {}
    if type(value).__name__ == "OptimizedModule":
        plain, backend = value._orig_mod, value.dynamo_ctx.callback
        while hasattr(backend, "_torchdynamo_orig_backend"):
            backend = backend._torchdynamo_orig_backend
        if isinstance(backend, FunctionType):
            known = {"backend": backend}
    elif isinstance(value, FunctionType) and "_torchdynamo_disable" not in vars(value):
        plain = vars(value).get("_torchdynamo_orig_callable")
    else:
        return None
    return None if plain is None else (plain, vars(value).get("_windrow_compiled", known))


def _compiled(plain: Any, arguments: dict[str, Any]) -> Any:
    """``plain``, compiled when it is called first: code of another process is of no use here."""
    import torch

    return torch.compile(plain, **arguments)


def _culprits(value: Any, path: str, depth: int = 6) -> Iterator[tuple[str, Any]]:
    """The innermost parts of ``value`` that cannot be pickled, and where they are in it."""
    try:
        dumps(value)
        return
    except Exception:
        inner = _parts(value) if depth else []
    found = False
    for name, part in inner:
        for culprit in _culprits(part, path + name, depth - 1):
            found = True
            yield culprit
    if not found:
        yield path, value


def _parts(value: Any) -> list[tuple[str, Any]]:
    """What ``value`` refers to, each with how it is written behind the name of ``value``."""
    if isinstance(value, (list, tuple)):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, partial):
        return [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    if isinstance(value, MethodType):
        return [(".__self__", value.__self__)]
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or ())
        # A cell is empty where its variable was deleted.
        free = [(name, cell.cell_contents) for name, cell in cells if cell != type(cell)()]
        known = [(name, value.__globals__[name]) for name in _names(value.__code__) if name in value.__globals__]
        named = [(f" uses {name}", part) for name, part in (*free, *known)]
        return [(name, part) for name, part in named if not isinstance(part, (ModuleType, BuiltinFunctionType))]
    from windrow.collectors._factory import Factory

    # Some leave out of their state what they could not be pickled with.
    try:
        state = value.__getstate__()
    except Exception:
        state = None
    state = state if isinstance(state, dict) else getattr(value, "__dict__", {})
    # The user gave the function, and nothing around it.
    return [("" if isinstance(value, (Factory, Sendable)) else f".{name}", part) for name, part in state.items()]


def _names(code: CodeType) -> list[str]:
    """Names that ``code`` and the functions in it use."""
    inner = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part)]
    return [*code.co_names, *inner]


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = object.__repr__(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def sent(error: BaseException) -> bytes:
    """An exception of a worker process, as bytes."""
    # What no encoding knows, such as the name of a file, is written as an escape.
    lines = _cut("".join(traceback.format_exception(error)).encode(errors="backslashreplace").decode())
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    message = _cut(traceback.format_exception_only(error)[-1].strip())
    try:
        pickled = dumps(error)
        # Some can be written, and not be read again: their constructors have other arguments.
        pickle.loads(pickled)
        pickled = pickled if len(pickled) <= _LONG else b""
    except BaseException:
        pickled = b""
    return pickle.dumps((pickled, name, message, lines, isinstance(error, Exception)))


def _cut(text: str) -> str:
    half = _LONG // 2
    return text if len(text) <= _LONG else f"{text[:half]}… ({len(text)} characters) …{text[-half:]}"


def received(sent: bytes) -> BaseException:
    """The exception that :func:`sent` has written: of its own type where that can be read here, otherwise a ``RuntimeError`` that
    names the type. Its cause has the traceback.
    """
    pickled, name, message, text, is_failure = pickle.loads(sent)
    error: Any = None
    if pickled:
        try:
            error = pickle.loads(pickled)
        except Exception:
            pass
    if not isinstance(error, BaseException):
        error = RuntimeError(message) if is_failure else KeyboardInterrupt(message)
        error.add_note(f"It was {name}, which cannot be sent from a worker process.")
    error.__cause__ = RemoteTraceback(text.rstrip())
    return error


_asked = types.SimpleNamespace(environment=None)
"""In a worker process, the environments as the user gave them, or the factory that has made them."""

#: Objects of these modules are sent as copies; of any other class, what is asked of them is asked where they are.
_VALUES = ("builtins", "gymnasium.spaces", "numpy", "tensordict", "torch", "torchrl.data", "windrow.envs._specs", "collections")


def answer(request: bytes) -> bytes:
    """In a worker process, the answer to a question of :class:`windrow.collectors._remote.Remote`: whether an exception was raised,
    and it or what was asked for."""
    try:
        return dumps((False, _answered(*pickle.loads(request))))
    except BaseException as error:
        return pickle.dumps((True, sent(error)))


def _answered(verb: str, *arguments: Any) -> Any:
    from windrow.collectors import _env_states

    if verb == "states":
        return _env_states.states_of([_asked.environment])
    if verb == "load_states":
        return _env_states.load([_asked.environment], *arguments)
    if verb == "dump":
        return _dump(*arguments)
    found = _environment()
    path, given = arguments[0], arguments[1:]
    for kind, name in path:
        found = getattr(found, name) if kind == "attribute" else found[name]
    if verb == "repr":
        return repr(found)
    if verb == "set":
        return setattr(found, *given)
    if verb == "call":
        args, kwargs = given
        return found(*args, **kwargs)
    if _is_value(found):
        return "value", found
    return ("callable" if callable(found) else "object"), None


def _dump(step: int) -> None:
    """Lets the recorders of the environment write what they have recorded."""
    # There are none of Python's own: what records is a transform of a library.
    if "torchrl" in sys.modules:
        from windrow.collectors import _statistics

        for recorder in _statistics.recorders(_environment()):
            recorder.dump(step=step)


def _environment() -> Any:
    from windrow.collectors._factory import Factory
    from windrow.collectors._workers import env_of

    given = _asked.environment
    return given.made if isinstance(given, Factory) else env_of(given)


def _is_value(found: Any) -> bool:
    if isinstance(found, (types.FunctionType, types.MethodType, types.BuiltinFunctionType, ModuleType, type)):
        return False
    if isinstance(found, (list, tuple, set, frozenset)):
        return all(map(_is_value, found))
    if isinstance(found, dict):
        return all(map(_is_value, found.values()))
    module = type(found).__module__
    if hasattr(found, "forward") or hasattr(found, "step"):
        return False
    return any(module == known or module.startswith(f"{known}.") for known in _VALUES)
