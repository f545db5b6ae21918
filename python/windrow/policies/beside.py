"""A policy's state beside its weights, on its way to the workers that act with copies: bytes among
the weights, under a name of their own.

Workers that evaluate a graph read the graph there that the policy is by now
(``windrow.policies.lower``), or that it is none any more, with the policy itself where they are in
other processes; those that call a copy of a module what has changed of its attributes
(:class:`Attributes`). Weights and bytes are published together, so each version has both.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import pickle
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from windrow._warnings import PerformanceWarning, warn
from windrow.policies.compared import (
    IGNORED,
    Facts,
    Named,
    Outside,
    Read,
    changed,
    look,
    referred,
)
from windrow.policies.held import owner_of, packages_of, parts_of, roots_of
from windrow.policies.lower.values import NotLowerable
from windrow.policies.places import MISSING
from windrow.policies.weights import BESIDE, tensors_of
from windrow.processes.pickling import pickler

if TYPE_CHECKING:
    from windrow.policies.called import Called
    from windrow.policies.lower.lowering import Lowered

#: Bytes that give the length of each part.
HEADER = 8
#: How often what another thread changes is read again.
_TRIES = 50
#: Attributes of modules that are no state of their own, or that no call reads.
_UNREAD = vars(nn.Module()).keys() - {
    "training",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
}


class Beside:
    """The bytes, whose number is fixed since weights keep their shapes.

    Args:
        lowered: gives the graph as it is now, as bytes; None where torch evaluates the policy.
        attributes: makes what gives the changes of attributes since it was made; None where nobody
            has copies.
        called: the policy as Python calls it where it is no graph any more; None where that is an
            error.
        is_served: each call has any number of rows.

    Attributes:
        leaf: the bytes, each part behind its length. ``[room]``, uint8.
        lost: the reason why Python calls a policy that Rust has evaluated before.
        envs: how many environments a worker has, and whether they have a dimension, once that is
            known.
        warns: the user is warned once a policy is called that Rust has evaluated before.
    """

    def __init__(
        self,
        lowered: Lowered | None,
        attributes: Callable[[], Callable[[], bytes]] | None,
        called: Called | None = None,
        *,
        is_served: bool = False,
    ) -> None:
        self._graph = None if lowered is None else lowered.graph
        self._called, self._make_attributes = called, attributes
        self._is_served = is_served
        self.lost: str | None = None
        self.envs: tuple[int, bool] | None = None
        self.warns = True
        # Of the learner's thread, and of the one that collects in the background.
        self._lock = threading.RLock()
        self._attributes: Callable[[], bytes] | None = None
        if lowered is None:
            self.begin_attributes()
        own = b"" if self._attributes is None else self._attributes()
        self._written = [b"" if lowered is None else lowered.first, own, b""]
        # Room for more, such as constants with more digits.
        room = 4096 * (1 + sum(map(len, self._written)) // 1024)
        if called is not None and called.conditions.apart:
            # For the policy itself, should it be needed there. Where it cannot be sent, the error
            # comes then.
            with contextlib.suppress(Exception):
                room += 4096 * (1 + len(called.sent()) // 2048)
        self.leaf = torch.zeros(room, dtype=torch.uint8, device="cpu")
        self._write(self._written)

    def begin_attributes(self) -> None:
        """Has the bytes bring attributes that change from now on."""
        if self._attributes is None and self._make_attributes is not None:
            self._attributes = self._make_attributes()

    def refresh(self) -> None:
        """Brings the bytes up to date.

        Raises:
            RuntimeError: what the policy reads by now can neither be evaluated nor sent, or it was
                to be native and is no graph any more.
        """
        with self._lock:
            try:
                now = self._now()
            except NotLowerable as reason:
                self._lose(str(reason))
            else:
                if now != self._written:
                    self._write(now)

    def _now(self) -> list[bytes]:
        graph, policy = self._written[::2] if self.lost is not None else (b"", b"")
        if self._graph is not None and self.lost is None:
            graph = self._graph()
            self._check_rows(graph)
        return [graph, b"" if self._attributes is None else self._attributes(), policy]

    def _check_rows(self, graph: bytes) -> None:
        """Raises NotLowerable where ``graph``, another one than before, does not hold for the
        environments of a worker.
        """
        if (self.envs is None and not self._is_served) or graph == self._written[0]:
            return
        holds = json.loads(graph)
        if self._is_served:
            if holds["rows"] != [[1, None]]:
                raise NotLowerable("its graph does not hold for all numbers of rows any more")
            return
        assert self.envs is not None
        count, has_dimension = self.envs
        if has_dimension and not any(
            (low or 0) <= count and (high is None or count <= high) for low, high in holds["rows"]
        ):
            raise NotLowerable(
                f"its graph does not hold for {count} environments that step together any more"
            )
        if not has_dimension and not holds["single"]:
            raise NotLowerable("its graph does not hold for one environment alone any more")

    def _lose(self, reason: str) -> None:
        """Has Python call the policy from the next publication on, for good.

        Raises:
            RuntimeError: it was to be native, or other processes cannot get it.
        """
        called = self._called
        if called is None:
            raise RuntimeError(
                f'policy_backend="native": {reason}; build a new collector, or leave policy_backend out, so that the policy is called'
            )
        conditions = called.conditions
        lost: dict[str, Any] = {
            "graph": None,
            "used": [],
            "rows": [],
            "single": False,
            "live": not conditions.copies,
        }
        try:
            policy = called.sent() if conditions.apart else b""
        except Exception as error:
            raise RuntimeError(
                f"Rust cannot evaluate the policy any more, since {reason}; and it cannot be called by workers in other processes: {error}"
            ) from error
        called.freeze()
        self._attributes = None
        if conditions.copies:
            self.begin_attributes()
        attributes = b"" if self._attributes is None else self._attributes()
        self._write([json.dumps(lost).encode(), attributes, policy])
        self.lost = reason
        if self.warns:
            warn(
                f'the policy is called in Python from now on, since {reason}: policy_backend="torch" says so without this warning',
                PerformanceWarning,
            )

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
    """Attributes of the parts of a policy, for the copies of it that workers call.

    All attributes of a module count, and those of another object that the policy's code names.
    Each is compared by what it pickles to, and sent when it has changed: copies keep others, such
    as numbers of their own calls.

    Args:
        policy: the policy.
        module: the module whose weights it has.
        evaluates: the copies are in evaluation mode, whatever the module is in.
        elsewhere: the copies are in other processes, with globals of their own: what the policy's
            code refers to outside of its parts is compared, too.
    """

    def __init__(
        self, policy: Callable[..., Any], module: nn.Module, *, evaluates: bool, elsewhere: bool
    ) -> None:
        self._policy, self._module, self._elsewhere = policy, module, elsewhere
        self._skipped = _UNREAD | ({"training"} if evaluates else set())
        parts = parts_of(policy, module)
        self._kinds = _kinds_of(parts, tensors_of(module))
        self._code = Outside(packages_of(policy, parts))
        self._code.follow(roots_of(policy, parts))
        self._seen: Facts = {}
        # Code behind attributes may name more of them.
        for _ in range(2):
            self._seen = self._look()
            self._code.follow(referred(self._seen))
        #: What has changed since the copies were made, even if it is now what it was.
        self._changed: set[tuple[str, str]] = set()
        # Room for other values of as many bytes.
        room = sum(max(len(held or b"") - 256, 0) for _, held, _ in self._seen.values())
        self._written = pickle.dumps({}).ljust(room, b"\0")

    def __call__(self) -> bytes:
        """The attributes that have changed since the copies were made.

        Raises:
            RuntimeError: something has changed that cannot be sent.
        """
        moved: list[tuple[str, str]] = []
        # Another thread may change something meanwhile.
        for _ in range(_TRIES):
            now = self._look()
            places = changed(now, self._seen)
            moved = [place for place in places if not isinstance(place, str)]
            outside = min(places - {*moved} & self._seen.keys(), default=None)
            if outside is not None:
                raise RuntimeError(
                    f"{outside}, which the policy reads, has changed, and is no part of the module: worker processes have "
                    "copies of their own. Keep it in the module, as an attribute or a buffer"
                )
            if moved:
                self._changed |= {*moved}
                self._written = self._dumps(now)
                self._code.follow(referred(now))
            self._seen = now
            if not moved:
                return self._written
        what = min(".".join(place).lstrip(".") for place in moved)
        raise self._unsent(f"{what} of {self._name} changes while it is read")

    @property
    def _name(self) -> str:
        owner = owner_of(self._policy)
        return type(self._module if owner is None else owner).__name__

    def _unsent(self, reason: str) -> RuntimeError:
        return RuntimeError(
            f"{reason}: workers take over what can be pickled of the modules that they know"
        )

    def _look(self) -> Facts:
        """The attributes of all parts, by the name of the part and their own, and places outside by
        one name.
        """
        parts, tensors = parts_of(self._policy, self._module), tensors_of(self._module)
        kinds = _kinds_of(parts, tensors)
        if kinds != self._kinds:
            part = min((name for name, _ in {*kinds} ^ {*self._kinds}), default=None)
            what = "their order" if part is None else part or "its class"
            raise self._unsent(f"the parts of {self._name} have changed: {what}")
        code = self._code
        code.named = _named(parts, tensors)
        reads: dict[Any, Read] = {**code.reads} if self._elsewhere else {}
        for part_name, part in parts.items():
            attributes, is_module = vars(part), isinstance(part, nn.Module)
            for name, value in list(attributes.items()):
                is_state = is_module and not isinstance(value, IGNORED)
                if name not in self._skipped and (is_state or code.reads_named(name)):
                    reads[part_name, name] = functools.partial(attributes.get, name, MISSING)
            for name in getattr(part, "_non_persistent_buffers_set", ()):
                reads[part_name, name] = functools.partial(part._buffers.get, name, MISSING)
            # What torch.jit keeps beside weights is no attribute of Python's.
            compiled = getattr(part, "_concrete_type", None) if is_module else None
            for name in [] if compiled is None else compiled.get_attributes():
                if name not in self._skipped and not isinstance(getattr(part, name), torch.Tensor):
                    reads[part_name, name] = functools.partial(getattr, part, name, MISSING)
        for name, tensor in tensors.items():
            for mark in [*vars(tensor), *(code.names & {"grad", "requires_grad"})]:
                reads[name, mark] = functools.partial(getattr, tensor, mark, MISSING)
        return look(reads, code.named, self._seen)

    def _dumps(self, now: Facts) -> bytes:
        """The attributes that have changed, in which parts and weights have their names; None
        stands for one that is gone.
        """
        names = self._code.named

        class Pickler(pickler()):  # type: ignore[misc]
            def persistent_id(self, value: object) -> tuple[str, str] | None:
                name: tuple[str, str] | None = names.name_of(value)
                return name

        written: dict[tuple[str, str], bytes | None] = {}
        for part, name in self._changed:
            stream, value = io.BytesIO(), now[part, name][0] if (part, name) in now else MISSING
            try:
                if value is not MISSING:
                    Pickler(stream).dump(value)
            except Exception as error:
                where = f"{part}.{name}" if part else name
                raise self._unsent(
                    f"{where} of {self._name} has changed, and cannot be sent: {error}"
                ) from error
            written[part, name] = None if value is MISSING else stream.getvalue()
        return pickle.dumps(written)


def _named(parts: Mapping[str, Any], tensors: Mapping[str, Any]) -> Named:
    """Parts and weights, which attributes refer to."""
    return Named(
        [
            *((("tensor", name), tensor) for name, tensor in tensors.items()),
            *((("part", name), part) for name, part in parts.items()),
        ]
    )


def _kinds_of(parts: Mapping[str, Any], tensors: Mapping[str, Any]) -> list[tuple[str, object]]:
    """The classes of parts, and which weights are one tensor, by their names."""
    names = _named({}, tensors)
    tied = [(name, names.name_of(tensor)) for name, tensor in tensors.items()]
    return [(name, type(part)) for name, part in parts.items()] + [
        (name, first) for name, first in tied if first != ("tensor", name)
    ]


def load_attributes(written: bytes, policy: Callable[..., Any], module: nn.Module) -> None:
    """Gives ``policy``, a copy with the weights of ``module``, the attributes that
    :class:`Attributes` has written down.
    """
    held: dict[tuple[str, str], bytes | None] = pickle.loads(written)
    parts, tensors = parts_of(policy, module), tensors_of(module)

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, named: tuple[str, str]) -> Any:
            kind, name = named
            return parts[name] if kind == "part" else tensors[name]

    for part in parts.values() if held else ():
        # Computed from what has changed.
        for name in [
            name
            for name in part.__dict__
            if isinstance(getattr(type(part), name, None), functools.cached_property)
        ]:
            del part.__dict__[name]
    values = {
        place: MISSING if one is None else Unpickler(io.BytesIO(one)).load()
        for place, one in held.items()
    }
    for (part, name), value in values.items():
        target = parts[part] if part in parts else tensors[part]
        buffers = getattr(target, "_non_persistent_buffers_set", ())
        attributes: dict[str, Any] = target._buffers if name in buffers else target.__dict__
        if value is MISSING:
            attributes.pop(name, None)
        elif name in attributes or not hasattr(target, name):
            attributes[name] = value
        else:
            # What is no attribute of Python's alone.
            setattr(target, name, value)
