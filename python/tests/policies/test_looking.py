"""Every way in which a policy may look at the numbers of what it observes: what it does then is
decided by Python, and torch is called.
"""

from __future__ import annotations

import copy
import ctypes
import io
import math
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from random_modules import Apply, lowered
from torch.utils.dlpack import to_dlpack

from windrow.policies.choose import Conditions
from windrow.policies.lower.lowering import lower
from windrow.policies.lower.values import NotLowerable

Tensor = torch.Tensor


def saved(x: Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(x, file)
    return file.getvalue()


def seen(function: Callable[[float], Any], x: Tensor) -> list[Any]:
    """The arguments of ``function``."""
    found: list[Any] = []
    x.detach().clone().apply_(lambda number: found.append(number) or number)  # type: ignore[func-returns-value]
    return found


@torch.jit.script
def scripted(x: Tensor) -> int:
    if bool(x.sum() > 0):
        return 1
    return 2


WAYS: dict[str, Callable[[Tensor], Any]] = {
    "str": str,
    "repr": repr,
    "f-string": lambda x: f"{x}",
    "f-string of one": lambda x: f"{x[0, 0]:.2f}",
    "format": lambda x: format(x[0, 0], ".3f"),
    "percent": lambda x: "%s" % x,
    "percent of one": lambda x: "%f" % x[0, 0],
    "print": lambda x: print(x, file=io.StringIO()) or 1,
    "repr of a list": lambda x: repr([x]),
    "repr of a view": lambda x: repr(x[:, 0].unsqueeze(-1).data),
    "tolist": lambda x: x.tolist(),
    "item": lambda x: x[0, 0].item(),
    "float": lambda x: float(x[0, 0]),
    "int": lambda x: int(x[0, 0]),
    "bool": lambda x: bool(x[0, 0] > 0),
    "complex": lambda x: complex(x[0, 0]),
    "index": lambda x: operator.index(x[0, 0].long()),
    "range": lambda x: range((x[0, 0] > 0).long()),
    "if": lambda x: 1 if (x > 0).all() else 2,
    "not": lambda x: not x[0, 0],
    "assert": lambda x: 1 if x.sum() > 0 and x.sum() < 9 else 2,
    "in": lambda x: 1.0 in x,
    "max of a list": lambda x: max(x[:, 0].unbind()),
    "sorted": lambda x: sorted(x[0].unbind()),
    "math": lambda x: math.floor(x[0, 0]),
    "round": lambda x: round(float(x[0, 0])),
    "numpy": lambda x: x.numpy(),
    "numpy of a copy": lambda x: x.detach().cpu().numpy(),
    "forced numpy": lambda x: x.numpy(force=True),
    "np.asarray": lambda x: np.asarray(x),
    "np.array": lambda x: np.array(x),
    "np.sum": lambda x: np.mean(x.detach().numpy()),
    "__array__": lambda x: x.__array__(),
    "memoryview": lambda x: memoryview(x.numpy()),
    "dlpack": lambda x: torch.from_dlpack(x),
    "np.from_dlpack": lambda x: np.from_dlpack(x),
    "data_ptr": lambda x: ctypes.c_float.from_address(x.data_ptr()).value,
    "storage": lambda x: x.untyped_storage().tolist(),
    "typed storage": lambda x: x.storage().tolist(),
    "equal": lambda x: torch.equal(x, torch.zeros_like(x)),
    "allclose": lambda x: torch.allclose(x, torch.zeros_like(x)),
    "is_nonzero": lambda x: torch.is_nonzero(x[0, 0]),
    "unique": lambda x: len(torch.unique(x)),
    "nonzero": lambda x: len(x.nonzero()),
    "argwhere": lambda x: len(torch.argwhere(x > 0)),
    "where with one argument": lambda x: len(torch.where(x > 0)[0]),
    "a mask for an index": lambda x: len(x[x > 0]),
    "masked_select": lambda x: len(x.masked_select(x > 0)),
    "bincount": lambda x: len(torch.bincount((x > 0).long().flatten())),
    "repeat_interleave": lambda x: len(x.repeat_interleave((x[:, 0] > 0).long(), 0)),
    "a branch of a script": scripted,
    "deepcopy": lambda x: (copy.deepcopy(x) > -99).all(),
    "pickle": lambda x: pickle.dumps(x),
    "save": saved,
    "apply_": lambda x: seen(float, x),
    "assert_close": lambda x: torch.testing.assert_close(x, x.clone()) or 1,
    "_assert_async": lambda x: torch._assert_async((x < 99).all()) or 1,
    "isnan in a branch": lambda x: 1 if torch.isnan(x).any() else 2,
    "a slice": lambda x: x[:, : int((x[0, 0] > 0).long()) + 1],
    "split by numbers": lambda x: x.split((x[0] > -99).long().tolist(), -1),
    "a tensor of numbers": lambda x: torch.tensor([float(x[0, 0])]),
    "as_tensor": lambda x: torch.as_tensor(x.numpy()),
    "the sum of a list": lambda x: sum(x[0].tolist()),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore")
def test_a_policy_that_looks_at_numbers_is_left_to_torch(way: str) -> None:
    look = WAYS[way]

    def forward(x: Tensor) -> Tensor:
        return x * (1 if look(x) is not None else 2)

    observe = torch.randn(37, 3)
    assert forward(observe) is not None, "torch computes it"
    with pytest.raises(NotLowerable):
        lowered(Apply(forward), lambda rows: torch.randn(rows, 3))


@pytest.mark.parametrize(
    "look",
    [
        to_dlpack,
        lambda x: torch.utils.dlpack.to_dlpack(x),
        lambda x: torch._C._to_dlpack_versioned(x),
    ],
)
def test_a_policy_that_hands_out_memory_below_torch_is_called(
    look: Callable[[Tensor], Any],
) -> None:
    class Looks(torch.nn.Linear):
        def forward(self, observation: Tensor) -> Tensor:
            return super().forward(observation) * (1 if look(observation) is not None else 2)

    with pytest.raises(NotLowerable, match="it calls torch._C._to_dlpack"):
        lower(Looks(3, 2), Conditions("random", threads=False))


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: len(x),
        lambda x: x.shape,
        lambda x: x.dtype is torch.float32,
        lambda x: {x: 1}[x],
        lambda x: id(x),
        lambda x: x.is_contiguous() and x.dim() and x.numel() and x.stride(),
        lambda x: list(x.unbind(-1)),
        lambda x: isinstance(x, torch.Tensor) and x.device.type,
        lambda x: x.requires_grad,
    ],
)
def test_a_policy_that_asks_for_anything_but_numbers_is_evaluated_natively(
    ask: Callable[[Tensor], Any],
) -> None:
    native = lowered(
        Apply(lambda x: x * (1 if ask(x) is not None else 2)), lambda rows: torch.randn(rows, 3)
    )
    assert native(torch.ones(2, 3)).tolist() == [[1.0] * 3] * 2
