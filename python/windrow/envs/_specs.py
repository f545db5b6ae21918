"""Domains of observations, actions, rewards and flags, as specs with TorchRL's names and
attributes.

Users are given these where torchrl is not installed, and TorchRL's own otherwise
(``windrow.torchrl._specs``). Nothing here imports torch before a tensor is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from windrow._keys import Key, path
from windrow._lazy import module, numpy, tensordict, torch
from windrow._types import Array, Device

_codecs, _values = module("windrow._codecs"), module("windrow._values")

#: Element types that batches hold.
DTYPES = {"bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64"}


def delta_type(transform: Any) -> str:
    """The element type of the differences that a ``NextObservationDelta`` of TorchRL makes, by its
    name.
    """
    return str(transform.delta_dtype).removeprefix("torch.")


def set_delta(step: tensordict.TensorDictBase, key: Key, dtype: str) -> None:
    """Adds to a step, or to a batch of steps, by how much the observation ``key`` differs from the
    one before, if it has both.
    """
    names = path(key)
    before, after = step.get(names, None), step.get(("next", *names), None)
    if before is not None and after is not None:
        step.set(("next", "delta", *names), (after - before).to(getattr(torch, dtype)))


class Leaf(NamedTuple):
    """One leaf in plain values, as the engine describes it, without dimensions for the
    environments.
    """

    key: Key
    #: ``"unbounded"``, ``"bounded"``, ``"discrete"``, ``"multi_discrete"``, ``"one_hot"`` or
    #: ``"binary"``.
    kind: str
    dtype: str
    shape: Sequence[int] = ()
    #: Number of each choice, where there are choices.
    nvec: Sequence[int] | None = None
    #: Bounds, one for each element, where there are bounds.
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    #: Of a leaf of ``"bytes"``, whose values no array holds: the bytes of one of them.
    example: bytes = b""


def draw(
    leaf: Leaf, noise: numpy.random.Generator, lead: tuple[int, ...], mask: Array | None = None
) -> Array:
    """An array ``[*lead, *shape]`` drawn from the domain of ``leaf``: uniformly where it is
    bounded, with exponential or normal tails where it is not.

    Args:
        leaf: what is drawn.
        noise: a ``numpy.random.Generator``.
        lead: dimensions in front.
        mask: of choices, which are legal: ``bool``, with ``sum(nvec)`` elements for each of
            ``lead``. The first choice stands where none is.
    """
    shape = (*lead, *leaf.shape)
    if leaf.nvec is not None:
        return _draw_choices(leaf, noise, lead, mask)
    if leaf.kind == "binary" or leaf.dtype == "bool":
        return (noise.random(shape) < 0.5).astype(leaf.dtype)
    is_float = leaf.dtype.startswith("float")
    if leaf.kind == "unbounded" and is_float:
        return noise.standard_normal(shape).astype(leaf.dtype)
    low: Any = leaf.low
    high: Any = leaf.high
    if leaf.kind == "unbounded":
        info = numpy.iinfo(leaf.dtype)
        low, high = max(info.min, -(2**31)), min(info.max, 2**31)
    else:
        low, high = numpy.reshape(low, leaf.shape), numpy.reshape(high, leaf.shape)
    if not is_float:
        return numpy.clip(
            numpy.floor(low + (high - low + 1) * noise.random(shape)), low, high
        ).astype(leaf.dtype)
    tail = noise.standard_exponential(shape)
    above, below = numpy.isfinite(low), numpy.isfinite(high)
    start, end = numpy.where(above, low, 0.0), numpy.where(below, high, 0.0)
    u = noise.random(shape)
    drawn = numpy.where(
        above, start + tail, numpy.where(below, end - tail, noise.standard_normal(shape))
    )
    return numpy.where(above & below, start * (1 - u) + end * u, drawn).astype(leaf.dtype)


def _draw_choices(
    leaf: Leaf, noise: numpy.random.Generator, lead: tuple[int, ...], mask: Array | None
) -> Array:
    nvec = [int(n) for n in leaf.nvec or ()]
    if mask is None:
        chosen = [numpy.minimum((noise.random(lead) * n).astype(numpy.int64), n - 1) for n in nvec]
    else:
        # Each legal choice has a random number, and each number is equally likely to be the
        # largest.
        scores = numpy.where(mask, noise.random(mask.shape), -1.0).reshape((*lead, sum(nvec)))
        chosen = [part.argmax(-1) for part in numpy.split(scores, numpy.cumsum(nvec)[:-1], -1)]
    if leaf.kind == "one_hot":
        return numpy.concatenate(
            [numpy.eye(n, dtype=numpy.int64)[index] for n, index in zip(nvec, chosen, strict=True)],
            -1,
        )
    return numpy.stack(chosen, -1).reshape((*lead, *leaf.shape))


def torch_noise() -> numpy.random.Generator:
    """A ``numpy.random.Generator`` that follows torch's: after ``torch.manual_seed``, its numbers
    are the same.
    """
    return numpy.random.default_rng(int(torch.randint(2**63 - 1, (), device="cpu")))


#: A tensor, or what stands for values that no array holds.
Value: TypeAlias = "torch.Tensor | tensordict.NonTensorData | tensordict.NonTensorStack"


class Spec:
    """The domain of one leaf, with batch dimensions in front. Those of choices have ``nvec``, and
    ``n`` where there is one choice; those with bounds have ``low`` and ``high``. ``space`` is the
    spec itself.
    """

    def __init__(
        self, leaf: Leaf, batch: tuple[int, ...] = (), device: Device | None = None
    ) -> None:
        self._leaf, self._batch, self.device = leaf, tuple(batch), device
        self._shape = (*batch, *leaf.shape)

    @property
    def shape(self) -> torch.Size:
        """Shape as a ``torch.Size``, batch dimensions first."""
        return torch.Size(self._shape)

    @property
    def dtype(self) -> torch.dtype | None:
        """Element type as a ``torch.dtype``; None where values are no tensors, or of any shape."""
        return None if self.is_bytes else getattr(torch, self._leaf.dtype)

    @property
    def is_bytes(self) -> bool:
        """Whether no array holds the values."""
        return self._leaf.dtype == "bytes"

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._shape)

    @property
    def space(self) -> Spec:
        """The choices or the bounds: this spec itself."""
        return self

    def __getattr__(self, name: str) -> Any:
        nvec = self._leaf.nvec if name in ("n", "nvec") else None
        if nvec is not None and (name == "nvec" or len(nvec) == 1):
            return list(nvec) if name == "nvec" else nvec[0]
        bounds = getattr(self._leaf, name) if name in ("low", "high") else None
        if bounds is not None:
            bounds = torch.tensor(bounds, dtype=torch.float64, device=self.device or "cpu")
            return bounds.reshape(tuple(self._leaf.shape)).expand(self._shape).to(self.dtype)
        raise AttributeError(f"a spec of this kind has no attribute {name!r}")

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self._shape)

    def zero(self, shape: tuple[int, ...] = ()) -> Value:
        """A tensor of zeros, with ``shape`` in front; of values that no array holds, the shortest,
        or an example.
        """
        if self.is_bytes:
            return _values.repeated(self._leaf.example, (*shape, *self._shape), _codecs.own_codec())
        return torch.zeros((*shape, *self._shape), dtype=self.dtype, device=self.device or "cpu")

    def one(self, shape: tuple[int, ...] = ()) -> torch.Tensor:
        """A tensor of ones, with ``shape`` in front."""
        return self.zero(shape).fill_(1)

    def rand(self, shape: tuple[int, ...] = ()) -> Value:
        """A tensor drawn from the whole domain, with ``shape`` in front."""
        if self.is_bytes:
            return self.zero(shape)
        drawn = draw(self._leaf, torch_noise(), (*shape, *self._batch))
        return torch.as_tensor(drawn, dtype=self.dtype, device=self.device or "cpu")

    sample = rand

    def is_in(self, value: torch.Tensor) -> bool:
        """Whether ``value`` has this shape and element type, and lies in the domain."""
        if self.is_bytes:
            return True
        if tuple(value.shape[value.ndim - self.ndim :]) != self._shape or value.dtype != self.dtype:
            return False
        kind = self._leaf.kind
        if kind == "bounded":
            return bool(((value >= self.low) & (value <= self.high)).all())
        if kind == "unbounded":
            return not value.is_floating_point() or bool(value.isfinite().all())
        if kind == "one_hot" and any(
            (part.sum(-1) != 1).any() for part in value.split(self.nvec, -1)
        ):
            return False
        if kind in ("one_hot", "binary"):
            return bool(((value == 0) | (value == 1)).all())
        return bool(((value >= 0) & (value < value.new_tensor(self.nvec, dtype=torch.int64))).all())

    def __repr__(self) -> str:
        return f"Spec({self._leaf.kind}, shape={self._shape}, dtype={self._leaf.dtype})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spec):
            return NotImplemented
        own, its = (
            tuple(map(repr, (*spec._leaf[1:], spec._batch, spec.device))) for spec in (self, other)
        )
        return own == its

    __hash__ = None  # type: ignore[assignment]


class Composite(Mapping[str, Any]):
    """Named specs, nested; keys of several names are tuples."""

    def __init__(
        self, entries: Mapping[str, Any], shape: tuple[int, ...] = (), device: Device | None = None
    ) -> None:
        self._entries, self._shape, self.device = dict(entries), tuple(shape), device

    @property
    def shape(self) -> torch.Size:
        """Batch dimensions, as a ``torch.Size``."""
        return torch.Size(self._shape)

    batch_size = shape

    def __getitem__(self, key: Key) -> Any:
        entry: Any = self._entries
        for name in path(key):
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
                    yield (name, *path(key)), leaf
            else:
                yield name, entry

    def _map(
        self, make: Callable[[Spec], Value], shape: tuple[int, ...] = ()
    ) -> tensordict.TensorDictBase:
        made = {
            name: entry._map(make, shape) if isinstance(entry, Composite) else make(entry)
            for name, entry in self.items()
        }
        return tensordict.TensorDict(made, batch_size=(*shape, *self._shape), device=self.device)

    def zero(self, shape: tuple[int, ...] = ()) -> tensordict.TensorDictBase:
        """A ``TensorDict`` of zeros, with ``shape`` in front."""
        return self._map(lambda spec: spec.zero(shape), shape)

    def rand(self, shape: tuple[int, ...] = ()) -> tensordict.TensorDictBase:
        """A ``TensorDict`` drawn from the whole domain, with ``shape`` in front."""
        return self._map(lambda spec: spec.rand(shape), shape)

    sample = rand

    def is_in(self, value: tensordict.TensorDictBase) -> bool:
        """Whether ``value`` holds a legal value for each leaf."""
        keys = set(value.keys(True, True))
        return all(key in keys and leaf.is_in(value.get(key)) for key, leaf in self.leaves())

    def __repr__(self) -> str:
        entries = ", ".join(f"{name}: {entry!r}" for name, entry in self._entries.items())
        return f"Composite({entries})"


class Agents(Composite):
    """The specs of agents that differ from each other: a composite for each, in the dimension
    behind those of the batch.
    """

    def __init__(
        self, agents: list[Composite], batch: tuple[int, ...], device: Device | None = None
    ) -> None:
        super().__init__({}, (*batch, len(agents)), device)
        self.agents = agents

    def _map(
        self, make: Callable[[Spec], Value], shape: tuple[int, ...] = ()
    ) -> tensordict.TensorDictBase:
        return _values.stacked(
            [agent._map(make, shape) for agent in self.agents], len(shape) + len(self._shape) - 1
        )

    def is_in(self, value: tensordict.TensorDictBase) -> bool:
        return all(
            agent.is_in(one)
            for agent, one in zip(self.agents, value.unbind(len(self._shape) - 1), strict=True)
        )

    def __repr__(self) -> str:
        return f"Agents({', '.join(map(repr, self.agents))})"


def _of_agents(
    leaves: Iterable[Leaf], batch: tuple[int, ...], device: Device | None
) -> tuple[dict[tuple[str, ...], Agents], list[Leaf]]:
    """The specs of groups whose agents differ, by the names of these, and the leaves of others."""
    found: dict[tuple[str, ...], dict[int, dict[str, Any]]] = {}
    rest = []
    for leaf in leaves:
        if _values.public(leaf.key) == leaf.key:
            rest.append(leaf)
            continue
        *group, name, agent = path(leaf.key)[1:]
        found.setdefault(tuple(group), {}).setdefault(int(agent), {})[name] = Spec(
            leaf, batch, device
        )
    # What is the same for all agents of such a group.
    for leaf in (leaf for leaf in rest if path(leaf.key)[:-1] in found):
        members = found[path(leaf.key)[:-1]]
        for number, entries in members.items():
            entries[path(leaf.key)[-1]] = Spec(_of_agent(leaf, number, len(members)), batch, device)
    specs = {
        group: Agents(
            [Composite(agents[number], batch, device) for number in sorted(agents)], batch, device
        )
        for group, agents in found.items()
    }
    return specs, [leaf for leaf in rest if path(leaf.key)[:-1] not in found]


def _of_agent(leaf: Leaf, agent: int, count: int) -> Leaf:
    """The part of a leaf that is of one agent out of ``count``, which are in its first
    dimension.
    """

    def part(values: Sequence[Any] | None) -> list[Any] | None:
        return (
            None
            if values is None
            else list(values)[agent * len(values) // count : (agent + 1) * len(values) // count]
        )

    return leaf._replace(
        shape=leaf.shape[1:], nvec=part(leaf.nvec), low=part(leaf.low), high=part(leaf.high)
    )


def tree_of(
    leaves: Iterable[Leaf],
    batch: tuple[int, ...],
    groups: Mapping[Key, Sequence[int]] = {},
    device: Device | None = None,
) -> Composite:
    """The specs of ``leaves`` under their names. ``groups`` have dimensions of their own behind
    those of the batch.
    """
    root: dict[str, Any] = {}
    found, leaves = _of_agents(leaves, batch, device)
    for group, agents in found.items():
        level = root
        for name in group[:-1]:
            level = level.setdefault(name, {})
        level[group[-1]] = agents
    for leaf in leaves:
        level, (*outer, last) = root, path(leaf.key)
        for name in outer:
            level = level.setdefault(name, {})
        level[last] = Spec(leaf, batch, device)

    own = {path(key): tuple(size) for key, size in groups.items()}

    def composite(level: dict[str, Any], at: tuple[str, ...]) -> Composite:
        entries = {
            name: composite(entry, (*at, name)) if isinstance(entry, dict) else entry
            for name, entry in level.items()
        }
        return Composite(entries, (*batch, *own.get(at, ())), device)

    return composite(root, ())
