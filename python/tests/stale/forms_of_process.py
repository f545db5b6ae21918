"""State of the process, of torch and of the standard library; and what a call sees of itself."""

from __future__ import annotations

import contextlib
import decimal
import gc
import inspect
import pathlib
import queue
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from stale.forms import Base, OfNumber, form, pair, shifted, state

LIMIT = sys.getrecursionlimit()


def _flag(name: str, read: Callable[[], Any], write: Callable[[bool], Any], **options: Any) -> None:
    """Adds a form that adds 1 where a flag of the process is set."""
    options.setdefault("undo", lambda: write(False))
    state(
        name,
        lambda: write(False),
        lambda self: 1.0 if read() else 0.0,
        lambda self, level: write(bool(level)),
        names="torch|read|flag",
        is_flag=True,
        is_shared=True,
        is_of_process=True,
        **options,
    )


_flag(
    "whether algorithms are deterministic",
    torch.are_deterministic_algorithms_enabled,
    lambda on: torch.use_deterministic_algorithms(on, warn_only=True),
)
_flag(
    "whether nondeterminism is an error",
    torch.is_deterministic_algorithms_warn_only_enabled,
    lambda on: torch.use_deterministic_algorithms(False, warn_only=on),
)
_flag(
    "the precision of products",
    lambda: torch.get_float32_matmul_precision() == "high",
    lambda on: torch.set_float32_matmul_precision("high" if on else "highest"),
)
_flag(
    "a flag of a backend",
    lambda: torch.backends.cuda.matmul.allow_tf32,
    lambda on: setattr(torch.backends.cuda.matmul, "allow_tf32", on),
)
_flag(
    "the fast path of attention",
    lambda: not torch.backends.mha.get_fastpath_enabled(),
    lambda on: torch.backends.mha.set_fastpath_enabled(not on),
)
_flag(
    "a flag of cuDNN",
    lambda: torch.backends.cudnn.benchmark,
    lambda on: setattr(torch.backends.cudnn, "benchmark", on),
)
_flag(
    "which attention is allowed",
    lambda: not torch.backends.cuda.flash_sdp_enabled(),
    lambda on: torch.backends.cuda.enable_flash_sdp(not on),
)
_flag(
    "whether distributions check",
    lambda: torch.distributions.Distribution._validate_args,
    lambda on: torch.distributions.Distribution.set_default_validate_args(on),
)
_flag(
    "the number of threads",
    lambda: torch.get_num_threads() == 2,
    lambda on: torch.set_num_threads(1 + on),
    is_local=True,
)
_flag(
    "whether anomalies are detected",
    torch.is_anomaly_enabled,
    lambda on: torch.autograd.set_detect_anomaly(on),
    is_local=True,
)
_flag(
    "the limit of recursion",
    lambda: sys.getrecursionlimit() == 4321,
    lambda on: sys.setrecursionlimit(4321 if on else LIMIT),
)
_flag(
    "whether garbage is collected",
    lambda: not gc.isenabled(),
    lambda on: gc.disable() if on else gc.enable(),
)
_flag(
    "how NumPy treats errors",
    lambda: np.geterr()["under"] == "raise",
    lambda on: np.seterr(under="raise" if on else "ignore"),
    is_local=True,
)
_flag(
    "the precision of decimals",
    lambda: decimal.getcontext().prec == 5,
    lambda on: setattr(decimal.getcontext(), "prec", 5 if on else 28),
    is_local=True,
)
_flag(
    "how many digits texts of tensors have",
    lambda: len(str(torch.tensor(1 / 3))) == 12,
    lambda on: torch.set_printoptions(precision=2 if on else 4),
)


def _warned() -> bool:
    try:
        warnings.warn("stale", UserWarning, stacklevel=1)
    except UserWarning:
        return True
    return False


_flag(
    "whether warnings are errors",
    _warned,
    lambda on: warnings.simplefilter("error" if on else "ignore"),
    # Windrow's own warnings are errors then.
    is_local=True,
)
FILE = pathlib.Path(tempfile.mkdtemp()) / "gain"
QUEUE: queue.SimpleQueue[int] = queue.SimpleQueue()
_flag(
    "what a file has",
    lambda: FILE.read_text() == "1",
    lambda on: FILE.write_text(str(int(on))),
    is_local=True,
)
FILE.write_text("0")


def _fill(on: bool) -> None:
    while not QUEUE.empty():
        QUEUE.get()
    if on:
        QUEUE.put(1)


_flag("whether a queue is empty", lambda: not QUEUE.empty(), _fill)


class TypeOfNumbers(Base):
    """Adds 1 where new tensors are of float64."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        gain = torch.tensor([1.0, -1.0])
        wide = float(gain.dtype is torch.float64) + float(
            torch.get_default_dtype() is torch.float64
        )
        return self.net(observation) + (gain * wide / 2).to(observation.dtype)


def _wide(level: int) -> None:
    torch.set_default_dtype(torch.float64 if level else torch.float32)


@form("torch|default", is_flag=True, is_local=True, undo=lambda: _wide(0))
def the_default_type() -> Any:
    return TypeOfNumbers(), _wide


class Boosts(TorchFunctionMode):
    """Adds to what ``relu`` gives."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = function(*args, **(kwargs or {}))
        return shifted(given, 1.0, -1.0) if function is torch.relu else given


ENTERED: list[contextlib.ExitStack] = []


def _left() -> None:
    while ENTERED:
        ENTERED.pop().close()


def _within(name: str, context: Callable[[], Any], make: Callable[[], Any], action: Any) -> None:
    """Adds a form in which a program collects within a context of torch, or without it."""

    def made() -> Any:
        def change(level: int) -> None:
            _left()
            if level:
                ENTERED.append(contextlib.ExitStack())
                ENTERED[-1].enter_context(context())

        return make(), change

    made.__name__, made.__module__ = name, __name__
    form("torch|mode", is_flag=True, is_local=True, undo=_left, action=action)(made)


class Relu(Base):
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.net(observation))


class TypeOfProduct(Base):
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        product = self.net(observation)
        gain = float(product.dtype is torch.bfloat16)
        return shifted(product.float() * 0.0, gain, -gain)


_within("within a mode of functions", Boosts, Relu, None)
_within(
    "within autocast",
    lambda: torch.autocast("cpu", torch.bfloat16),
    TypeOfProduct,
    lambda x, level: x * 0.0 + torch.tensor(pair(level)),
)


# What a call sees of itself: nothing where torch calls it, and so nothing elsewhere


def _seen(name: str, sees: Callable[[torch.Tensor], Any]) -> None:
    """Adds a form that adds 100 where ``sees`` says of its input what is never true where the
    module is called.
    """

    def made() -> Any:
        class Policy(OfNumber):
            def forward(self, observation: torch.Tensor) -> torch.Tensor:
                gain = self.held + (100.0 if sees(observation) else 0.0)
                return shifted(self.net(observation), gain, -gain)

        policy = Policy(0.0)
        return policy, lambda level: setattr(policy, "held", float(level))

    made.__name__, made.__module__ = name, __name__
    form("held")(made)


_seen("whether it is compiled", lambda x: torch.compiler.is_compiling())
_seen("whether it is captured", lambda x: torch.compiler.is_dynamo_compiling())
_seen("whether it is exported", lambda x: torch.compiler.is_exporting())
_seen(
    "whether it is traced or scripted", lambda x: torch.jit.is_tracing() or torch.jit.is_scripting()
)
_seen("what kind of tensor it gets", lambda x: type(x) is not torch.Tensor)
_seen("whether its input is a proxy", lambda x: hasattr(x, "node") or hasattr(x, "proxy"))
_seen("whether its input is a parameter", lambda x: isinstance(x, nn.Parameter))
_seen("whether gradients are on", lambda x: torch.is_grad_enabled())
_seen("whether its input wants gradients", lambda x: x.requires_grad)
_seen("where its input is", lambda x: x.device.type != "cpu" or x.data_ptr() == 0)
_seen("how its input is laid out", lambda x: not x.is_contiguous() or x.stride(-1) != 1)
_seen("who calls it", lambda x: "torch._dynamo" in inspect.getmodule(sys._getframe()).__name__)
_seen("the type of numbers of shapes", lambda x: type(x.shape[-1]) is not int)
_seen("the type of the number of rows", lambda x: type(x.shape[0]) is not int)
_seen("the values of its input", lambda x: bool((x < 0).any()))
