"""First values of the states of recurrent policies."""

from __future__ import annotations

import math
from typing import Any

from windrow.envs._recipe import Described
from windrow.envs._specs import Key, path
from windrow.envs._transform import Transform


class Primer(Transform):
    """Observes the first values of a policy's states, as a ``TensorDictPrimer`` of TorchRL gives them.

    Args:
        primer: such as ``make_tensordict_primer()`` of a recurrent module gives. Each of its states is ``float32``, and a
            number at first.

    Raises:
        ValueError: a state is of another dtype, or drawn at random.
    """

    def __init__(self, primer: Any) -> None:
        batch = len(primer.primers.shape)
        self._states = [
            (path(key), list(spec.shape[batch:]), _first(key, spec, primer))
            for key, spec in primer.primers.items(include_nested=True, leaves_only=True)
        ]

    def _described(self, plain: bool = False) -> list[Described]:
        return [("Primer", {"key": names, "shape": shape, "value": _plain(value)}) for names, shape, value in self._states]

    def __repr__(self) -> str:
        return f"Primer({', '.join('.'.join(names) for names, _, _ in self._states)})"


def _plain(value: float) -> float | str:
    """A number as recipes hold it: JSON has no infinity."""
    return value if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "NaN")


def _first(key: Key, spec: Any, primer: Any) -> float:
    """The number that the state ``key`` begins with."""
    if primer.random:
        raise ValueError(f"the state {key!r} begins with random numbers, expected a number as default_value")
    if str(spec.dtype) != "torch.float32":
        raise ValueError(f"the state {key!r} is {spec.dtype}, expected torch.float32")
    values = primer.default_value
    value = values if primer.single_default_value else values[key]
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"the state {key!r} begins with {value!r}, expected a number as default_value") from None
