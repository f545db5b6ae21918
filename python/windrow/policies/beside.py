"""A policy's state beside its weights, on its way to the workers that act with copies: bytes among
the weights, under a name of their own.

Workers that evaluate a graph read the graph there that the policy is by now
(``windrow.policies.lower``), those that call a copy of a module what has changed of its attributes
(:class:`Attributes`). Weights and bytes are published together, so each version has both.
"""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from windrow.policies import reads, watch
from windrow.policies.weights import BESIDE, tensors_of

#: Bytes that give the length of each part.
HEADER = 8


class Beside:
    """The bytes, whose number is fixed since weights keep their shapes.

    Args:
        graph: gives the graph as it is now, as bytes; empty ones where torch evaluates the policy.
        attributes: gives what has changed of attributes; empty bytes where nobody has copies.

    Attributes:
        leaf: the bytes, each part behind its length. ``[room]``, uint8.
    """

    def __init__(self, graph: Callable[[], bytes], attributes: Callable[[], bytes]) -> None:
        self._parts = graph, attributes
        self._written = [part() for part in self._parts]
        # Room for more, such as constants with more digits.
        self.leaf = torch.zeros(
            4096 * (1 + sum(map(len, self._written)) // 1024), dtype=torch.uint8, device="cpu"
        )
        self._write(self._written)

    def refresh(self) -> None:
        """Brings the bytes up to date.

        Raises:
            RuntimeError: what the policy reads by now can neither be evaluated nor sent.
        """
        now = [part() for part in self._parts]
        if now != self._written:
            self._write(now)

    def _write(self, parts: list[bytes]) -> None:
        held = b"".join(len(part).to_bytes(HEADER, "little") + part for part in parts)
        if len(held) > len(self.leaf):
            raise RuntimeError(
                f"the policy's state beside its weights takes {len(held)} bytes by now, and there is room for {len(self.leaf)}: build a new "
                "collector"
            )
        self.leaf.copy_(
            torch.frombuffer(bytearray(held.ljust(len(self.leaf), b"\0")), dtype=torch.uint8)
        )
        self._written = parts

    def added_to(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """``weights`` with the bytes, brought up to date."""
        self.refresh()
        return {**weights, BESIDE: self.leaf}


def attributes_in(leaf: torch.Tensor) -> bytes:
    """The attributes that a :class:`Beside` has written into ``leaf``."""
    held = leaf.numpy().tobytes()
    first = HEADER + int.from_bytes(held[:HEADER], "little")
    return held[
        first + HEADER : first + HEADER + int.from_bytes(held[first : first + HEADER], "little")
    ]


class Attributes:
    """Attributes of the parts of a module, for the copies of it that workers call.

    Args:
        policy: the policy.
        module: the module whose weights it has.
        evaluates: the copies are in evaluation mode, whatever the module is in.
    """

    def __init__(self, policy: Callable[..., Any], module: nn.Module, *, evaluates: bool) -> None:
        self._policy, self._module = policy, module
        self._skipped = reads.UNREAD | {
            "_parameters",
            "_buffers",
            "_modules",
            *({"training"} if evaluates else ()),
        }
        self._state, self._parts = self._seen(), self._kinds()
        self._first = self._held()
        #: What has changed since the copies were made, even if it is now what it was.
        self._changed: set[tuple[str, str]] = set()
        self._outside: str | None = None
        self._written = pickle.dumps({})

    def __call__(self) -> bytes:
        """The attributes that have changed since the copies were made; the reason, where one cannot
        be sent.
        """
        # State that cannot be compared by its parts is compared by its bytes.
        if self._state.doubt is not None or not self._state.is_same():
            now = self._seen()
            if now.doubt is not None or self._state.difference(now) is not None:
                now = self._write(now)
            self._state = now
        return self._written

    def _write(self, now: reads.State) -> reads.State:
        """Writes down what has changed; returns what that was compared with."""
        for _ in range(3):
            # State that only new functions read has not changed.
            self._outside = self._outside or self._state.again(
                self._policy, self._tensors()
            ).outside(self._state)
            held, kinds = self._held(), self._kinds()
            self._changed |= {
                path
                for path, value in held.items()
                if path not in self._first or value.differs(self._first[path])
            }
            self._changed |= self._first.keys() - held.keys()
            if kinds == self._parts:
                self._written = _dumps(
                    {path: held.get(path) for path in self._changed}, self._outside, self._module
                )
            else:
                part = min(
                    (name for name, _ in set(kinds) ^ set(self._parts)), default="their order"
                )
                self._written = pickle.dumps(
                    {
                        "unsent": f"the parts of {type(self._module).__name__} have changed: {part or 'its class'}"
                    }
                )
            # Another thread may have changed something since.
            later = self._seen()
            changes = now.difference(later)
            if changes is None:
                return later
            now = later
        self._written = pickle.dumps(
            {"unsent": f"{changes} of {type(self._module).__name__} changes while it is read"}
        )
        return now

    def _kinds(self) -> list[tuple[str, type]]:
        return [(name, type(part)) for name, part in self._module.named_modules()]

    def _seen(self) -> reads.State:
        self._codes = reads.reachable(self._policy)
        return reads.State(self._policy, self._codes, self._tensors())

    def _tensors(self) -> Iterable[torch.Tensor]:
        return tensors_of(self._module).values()

    def _held(self) -> dict[tuple[str, str], Any]:
        """The attributes of all parts that code mentions, by the name of the part and their own."""
        names, takes_all = reads.names_in(self._codes)
        found: dict[tuple[str, str], Any] = {}
        for part_name, part in self._module.named_modules():
            is_own = not watch.is_trusted(type(part).__module__)
            for name, value in list(vars(part).items()):
                if name in self._skipped:
                    continue
                if not is_own or takes_all or name in names or name in reads.OF_MODULES:
                    found[part_name, name] = _Kept(value, self._codes)
            for name in part._non_persistent_buffers_set:
                found[part_name, name] = _Kept(part._buffers.get(name), self._codes)
        return found


class _Kept:
    """A value, and what it was when it was kept: its bytes, or what ``codes`` read of it where it
    has none.
    """

    def __init__(self, value: object, codes: Mapping[types.CodeType, dict[str, Any]]) -> None:
        import cloudpickle

        self.value = value
        self._was: bytes | None = None
        for dumps in (pickle.dumps, cloudpickle.dumps):
            with contextlib.suppress(Exception):
                self._was = dumps(value)
                break
        self._state = reads.State(value, codes, ()) if self._was is None else None

    def differs(self, before: _Kept) -> bool:
        if self._state is None or before._state is None:
            return self._was != before._was
        return self.value is not before.value or before._state.difference(self._state) is not None


def _dumps(
    changed: dict[tuple[str, str], _Kept | None], outside: str | None, module: nn.Module
) -> bytes:
    """Attributes as bytes, in which the parts and tensors of ``module`` have their names; None
    stands for one that is gone.
    """
    import cloudpickle

    parts = {id(part): name for name, part in module.named_modules()}
    tensors = {id(tensor): name for name, tensor in tensors_of(module).items()}

    class Pickler(cloudpickle.Pickler):
        def persistent_id(self, value: object) -> tuple[str, str] | None:
            if isinstance(value, nn.Module) and id(value) in parts:
                return "part", parts[id(value)]
            return (
                ("tensor", tensors[id(value)])
                if isinstance(value, torch.Tensor) and id(value) in tensors
                else None
            )

    written: dict[tuple[str, str], bytes | None] = {}
    for (part, name), kept in changed.items():
        stream = io.BytesIO()
        try:
            if kept is not None:
                Pickler(stream).dump(kept.value)
        except Exception as error:
            where = f"{part}.{name}" if part else name
            return pickle.dumps(
                {
                    "unsent": f"{where} of {type(module).__name__} has changed, and cannot be sent: {error}"
                }
            )
        written[part, name] = None if kept is None else stream.getvalue()
    return pickle.dumps({"attributes": written, "outside": outside})


def check_attributes(written: bytes) -> None:
    """Raises RuntimeError where :class:`Attributes` could not write down what has changed."""
    reason = pickle.loads(written).get("unsent")
    if reason is not None:
        raise RuntimeError(
            f"{reason}: workers take over what can be pickled of the modules that they know"
        )


def load_attributes(written: bytes, module: nn.Module, *, is_elsewhere: bool) -> None:
    """Gives ``module``, a copy, the attributes that :class:`Attributes` has written down.

    Args:
        is_elsewhere: this is another process than the module's, with globals of its own.

    Raises:
        RuntimeError: something that the module reads has changed, and was not sent.
    """
    check_attributes(written)
    changes = pickle.loads(written)
    if is_elsewhere and changes.get("outside") is not None:
        raise RuntimeError(
            f"{changes['outside']}, which {type(module).__name__} reads, has changed, and is no part of the module: worker processes have "
            "copies of their own. Keep it in the module, as an attribute or a buffer"
        )
    parts, tensors = dict(module.named_modules()), tensors_of(module)

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, named: tuple[str, str]) -> nn.Module | torch.Tensor:
            kind, name = named
            return parts[name] if kind == "part" else tensors[name]

    held = changes.get("attributes", {})
    for part in parts.values() if held else ():
        # Computed from what has changed.
        for name in [
            name
            for name in part.__dict__
            if isinstance(getattr(type(part), name, None), functools.cached_property)
        ]:
            del part.__dict__[name]
    values = {
        place: None if one is None else Unpickler(io.BytesIO(one)).load()
        for place, one in held.items()
    }
    for (part, name), value in values.items():
        target = parts[part]
        attributes: dict[str, Any] = (
            target._buffers if name in target._non_persistent_buffers_set else target.__dict__
        )
        if held[part, name] is None:
            attributes.pop(name, None)
        else:
            attributes[name] = value
