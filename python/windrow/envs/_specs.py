"""What environments observe and accept, as specs with TorchRL's names.

Where torchrl has been imported, environments give its own classes, so that its modules take them; otherwise those here,
which have the same attributes. Nothing here imports torch before a tensor is asked for.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

Description = tuple[Any, ...]
"""A spec in plain values, as the extension gives it: ``("discrete", 2)``."""


class Spec:
    """One leaf: its shape (batch dimensions included), element type and device."""

    def __init__(self, shape: tuple[int, ...], dtype: str, device: Any = None) -> None:
        self._shape, self._dtype, self.device = tuple(shape), dtype, device

    @property
    def shape(self) -> Any:
        """Shape as a ``torch.Size``, batch dimensions first."""
        import torch

        return torch.Size(self._shape)

    @property
    def dtype(self) -> Any:
        """Element type as a ``torch.dtype``."""
        import torch

        return getattr(torch, self._dtype)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._shape)

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self._shape)

    def zero(self, shape: tuple[int, ...] = ()) -> Any:
        """A tensor of zeros, with ``shape`` in front."""
        import torch

        return torch.zeros((*shape, *self._shape), dtype=self.dtype, device=self.device)

    def one(self, shape: tuple[int, ...] = ()) -> Any:
        """A tensor of ones, with ``shape`` in front."""
        return self.zero(shape) + self.zero(shape).new_ones(())

    def rand(self, shape: tuple[int, ...] = ()) -> Any:
        """A tensor drawn from the whole domain, with ``shape`` in front."""
        import torch

        drawn = self._draw((*shape, *self._shape))
        return torch.as_tensor(drawn, dtype=self.dtype, device=self.device)

    sample = rand

    def _draw(self, shape: tuple[int, ...]) -> Any:
        import torch

        return torch.randn(shape)

    def is_in(self, value: Any) -> bool:
        """Whether ``value`` has this shape and element type, and lies in the domain."""
        if tuple(value.shape[value.ndim - self.ndim :]) != self._shape or value.dtype != self.dtype:
            return False
        return bool(self._holds(value))

    def _holds(self, value: Any) -> Any:
        return value.isfinite().all() if value.is_floating_point() else True

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self._shape}, dtype={self._dtype})"

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return repr(self) == repr(other) and _plain(self.__dict__) == _plain(other.__dict__)

    __hash__ = None  # type: ignore[assignment]


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in attributes.items()}


class Unbounded(Spec):
    """Any value."""

    def _draw(self, shape: tuple[int, ...]) -> Any:
        import torch

        if self.dtype.is_floating_point:
            return torch.randn(shape)
        if self.dtype is torch.bool:
            return torch.randint(0, 2, shape)
        info = torch.iinfo(self.dtype)
        return torch.randint(max(info.min, -(2**31)), min(info.max, 2**31) + 1, shape)


class Bounded(Spec):
    """Values between ``low`` and ``high``, both included."""

    def __init__(self, shape: tuple[int, ...], dtype: str, low: Any, high: Any, device: Any = None) -> None:
        super().__init__(shape, dtype, device)
        self._low, self._high = low, high

    @property
    def low(self) -> Any:
        """Lowest values, with the shape of the spec."""
        return self._bound(self._low)

    @property
    def high(self) -> Any:
        """Highest values, with the shape of the spec."""
        return self._bound(self._high)

    def _bound(self, values: list[float]) -> Any:
        import torch

        bound = torch.tensor(values, dtype=torch.float64, device=self.device)
        inner = self._shape[len(self._shape) - _ndim(values, self._shape) :]
        return bound.reshape(inner).expand(self._shape).to(self.dtype)

    @property
    def space(self) -> Bounded:
        """The bounds: this spec itself."""
        return self

    def _draw(self, shape: tuple[int, ...]) -> Any:
        import torch

        low, high = self.low.double().expand(shape), self.high.double().expand(shape)
        if not self.dtype.is_floating_point:
            return (low + (high - low + 1) * torch.rand(shape)).floor().clamp(low, high)
        both = low.isfinite() & high.isfinite()
        tail = torch.empty(shape).exponential_()
        open_ended = torch.where(
            low.isfinite(), low + tail, torch.where(high.isfinite(), high - tail, torch.randn(shape).double())
        )
        u = torch.rand(shape).double()
        return torch.where(both, low.nan_to_num() * (1 - u) + high.nan_to_num() * u, open_ended)

    def _holds(self, value: Any) -> Any:
        return ((value >= self.low) & (value <= self.high)).all()


def _ndim(values: list[float], shape: tuple[int, ...]) -> int:
    """How many of the last dimensions of ``shape`` hold as many elements as there are ``values``."""
    size, ndim = 1, 0
    for dim in reversed(shape):
        if size == len(values):
            break
        size, ndim = size * dim, ndim + 1
    return ndim


class Categorical(Spec):
    """One of ``n`` choices as its index."""

    def __init__(self, n: int, shape: tuple[int, ...] = (), dtype: str = "int64", device: Any = None) -> None:
        super().__init__(shape, dtype, device)
        self.n = n

    @property
    def space(self) -> Categorical:
        """The choices: this spec itself."""
        return self

    def _draw(self, shape: tuple[int, ...]) -> Any:
        import torch

        return torch.randint(0, self.n, shape)

    def _holds(self, value: Any) -> Any:
        return ((value >= 0) & (value < self.n)).all()


class MultiCategorical(Spec):
    """Several choices as their indices, element ``i`` below ``nvec[i]``."""

    def __init__(self, nvec: list[int], shape: tuple[int, ...], device: Any = None) -> None:
        super().__init__(shape, "int64", device)
        self.nvec = list(nvec)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        import torch

        return torch.stack([torch.randint(0, n, shape[:-1]) for n in self.nvec], -1)

    def _holds(self, value: Any) -> Any:
        import torch

        return ((value >= 0) & (value < torch.tensor(self.nvec))).all()


class MultiOneHot(Spec):
    """Several choices side by side, each a one among ``nvec[i]`` elements."""

    def __init__(self, nvec: list[int], shape: tuple[int, ...], device: Any = None) -> None:
        super().__init__(shape, "int64", device)
        self.nvec = list(nvec)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        import torch
        from torch.nn.functional import one_hot

        return torch.cat([one_hot(torch.randint(0, n, shape[:-1]), n) for n in self.nvec], -1)

    def _holds(self, value: Any) -> Any:
        groups = value.split(self.nvec, -1)
        return all(bool(((g == 0) | (g == 1)).all() & (g.sum(-1) == 1).all()) for g in groups)


class OneHot(MultiOneHot):
    """One of ``n`` choices as a one among ``n`` elements."""

    def __init__(self, n: int, shape: tuple[int, ...], device: Any = None) -> None:
        super().__init__([n], shape, device)
        self.n = n

    @property
    def space(self) -> OneHot:
        """The choices: this spec itself."""
        return self


class Binary(Spec):
    """Zeros and ones."""

    def _draw(self, shape: tuple[int, ...]) -> Any:
        import torch

        return torch.randint(0, 2, shape)

    def _holds(self, value: Any) -> Any:
        return ((value == 0) | (value == 1)).all()


class Composite(Mapping[str, Any]):
    """Named specs, nested; keys of several names are tuples."""

    def __init__(self, entries: dict[str, Any], shape: tuple[int, ...] = (), device: Any = None) -> None:
        self._entries, self._shape, self.device = entries, tuple(shape), device

    @property
    def shape(self) -> Any:
        """Batch dimensions, as a ``torch.Size``."""
        import torch

        return torch.Size(self._shape)

    @property
    def batch_size(self) -> Any:
        """The same as :attr:`shape`."""
        return self.shape

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, tuple):
            return self._entries[key]
        entry: Any = self
        for name in key:
            entry = entry[name]
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def leaves(self) -> Iterator[tuple[Any, Spec]]:
        """Each leaf with its key: a string, or a tuple of strings where it is nested."""
        for name, entry in self._entries.items():
            if isinstance(entry, Composite):
                for key, leaf in entry.leaves():
                    yield (name, *key) if isinstance(key, tuple) else (name, key), leaf
            else:
                yield name, entry

    def _map(self, make: Any) -> Any:
        from tensordict import TensorDict

        made = {name: entry._map(make) if isinstance(entry, Composite) else make(entry) for name, entry in self.items()}
        return TensorDict(made, batch_size=self._shape, device=self.device)

    def zero(self) -> Any:
        """A ``TensorDict`` of zeros."""
        return self._map(lambda spec: spec.zero())

    def rand(self) -> Any:
        """A ``TensorDict`` drawn from the whole domain."""
        return self._map(lambda spec: spec.rand())

    sample = rand

    def is_in(self, value: Any) -> bool:
        """Whether ``value`` holds a legal value for each leaf."""
        keys = set(value.keys(True, True))
        return all(key in keys and leaf.is_in(value.get(key)) for key, leaf in self.leaves())

    def __repr__(self) -> str:
        entries = ", ".join(f"{name}: {entry!r}" for name, entry in self._entries.items())
        return f"Composite({entries})"


def of(description: Description, batch: tuple[int, ...] = (), device: Any = None) -> Spec | Composite:
    """The spec that ``description`` stands for, with batch dimensions in front."""
    kind, *rest = description
    if kind == "composite":
        return Composite({name: of(entry, batch, device) for name, entry in rest[0]}, batch, device)
    if kind == "unbounded":
        return Unbounded((*batch, *rest[1]), rest[0], device)
    if kind == "bounded":
        return Bounded((*batch, *rest[1]), rest[0], rest[2], rest[3], device)
    if kind == "discrete":
        return Categorical(rest[0], batch, device=device)
    if kind == "binary":
        return Binary((*batch, *rest[0]), "int8", device)
    nvec = list(rest[0])
    if kind == "multi_discrete":
        return MultiCategorical(nvec, (*batch, len(nvec)), device)
    if len(nvec) == 1:
        return OneHot(nvec[0], (*batch, nvec[0]), device)
    return MultiOneHot(nvec, (*batch, sum(nvec)), device)


def leaves(description: Description, name: str) -> list[tuple[tuple[str, ...], Description]]:
    """Each leaf of a description with its path; a bare leaf is called ``name``."""
    if description[0] != "composite":
        return [((name,), description)]
    found = []
    for entry, inner in description[1]:
        below = leaves(inner, entry)
        found += [(path if inner[0] != "composite" else (entry, *path), leaf) for path, leaf in below]
    return found


def legal(description: Description, mask: Any, noise: Any) -> Any:
    """Choices of the leaf ``description`` that ``mask`` (``bool [envs, choices]``) allows, drawn by ``noise``, which is as large
    and uniform: ``int64 [envs, *shape]``, zeros where nothing is allowed.
    """
    import numpy

    kind, n = description
    nvec = [n] if kind == "discrete" else list(n)
    drawn = numpy.where(mask, noise, -1.0)
    parts = numpy.split(drawn, numpy.cumsum(nvec)[:-1], -1)
    chosen = [part.argmax(-1) for part in parts]
    if kind == "one_hot":
        return numpy.concatenate([numpy.eye(n, dtype=numpy.int64)[index] for n, index in zip(nvec, chosen)], -1)
    return chosen[0] if kind == "discrete" else numpy.stack(chosen, -1)


def give(spec: Spec | Composite) -> Any:
    """``spec`` for users: of torchrl's class where torchrl has been imported."""
    return _torchrl(spec) if "torchrl" in sys.modules else spec


def _torchrl(spec: Any) -> Any:
    from torchrl.data import tensor_specs as theirs

    if isinstance(spec, Composite):
        entries = {name: _torchrl(entry) for name, entry in spec.items()}
        return theirs.Composite(entries, shape=spec.shape, device=spec.device)
    common = {"shape": spec.shape, "dtype": spec.dtype, "device": spec.device}
    if isinstance(spec, Bounded):
        return theirs.Bounded(low=spec.low, high=spec.high, **common)
    if isinstance(spec, OneHot):
        return theirs.OneHot(spec.n, **common)
    if isinstance(spec, MultiOneHot):
        return theirs.MultiOneHot(spec.nvec, **common)
    if isinstance(spec, Categorical):
        return theirs.Categorical(spec.n, **common)
    if isinstance(spec, MultiCategorical):
        return theirs.MultiCategorical(spec.nvec, **common)
    if isinstance(spec, Binary):
        return theirs.Binary(n=spec.shape[-1] if spec.ndim else None, **common)
    return theirs.Unbounded(**common)
