"""Versions of weights that nobody publishes: those of a module that the engine calls itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from windrow._windrow import Readings

if TYPE_CHECKING:
    import torch

    from windrow._lazy import tensordict as td

#: Versions that are remembered one by one.
_MOST = 1024
_KEY = "policy_version"


class Live:
    """Whether the weights of a module have changed while they had a version.

    A batch that was collected meanwhile may have been computed with either weights, and has the
    version -1.

    Args:
        module: the module, which others change whenever they like.
        written: names of buffers that a call of the module itself writes, such as the statistics of
            a batch norm in training mode. They are known after the first call.
    """

    def __init__(self, module: torch.nn.Module, written: Collection[str]) -> None:
        self._module, self._written = module, written
        self._skipped = len(written)
        #: Versions in which weights have changed; all before the first number are taken for such.
        self._mixed: set[int] = set()
        self._first = 0
        self._find()
        self._versions = self._read()

    def has_moved(self) -> bool:
        """Whether a tensor has been written or replaced since the present version began."""
        if self._skipped != len(self._written):
            # The policy has been called for the first time.
            self._find()
            self._versions = self._read()
        return not self._slots.is_same() or self._read() != self._versions

    def begin(self) -> None:
        """Begins a new version with the weights of now."""
        if not self._slots.is_same():
            self._find()
        self._versions = self._read()

    def mix(self, version: int) -> None:
        """Notes that the weights have changed while they had this ``version``."""
        self._mixed.add(version)
        if len(self._mixed) > _MOST:
            self._first = version
            self._mixed = {version}

    def mark(self, batch: td.TensorDictBase) -> None:
        """Writes -1 in place of versions in which weights have changed."""
        if not self._mixed:
            return
        import torch

        for key in (_KEY, ("next", _KEY)):
            versions = batch.get(key, None)
            if versions is not None:
                mixed = torch.isin(versions, torch.tensor(sorted(self._mixed)))
                versions.masked_fill_(mixed | (versions < self._first), -1)

    def _read(self) -> list[int]:
        return [tensor._version for tensor in self._tensors]

    def _find(self) -> None:
        import torch

        self._skipped = len(self._written)
        owners, entries = [], []
        for name, part in self._module.named_modules():
            before = f"{name}." if name else ""
            for held in (part._modules, part._parameters, part._buffers):
                if not isinstance(held, dict):
                    # Of a part that is compiled.
                    continue
                owners.append((held, len(held)))
                entries += [
                    (held, key, value)
                    for key, value in held.items()
                    if value is not None and before + key not in self._written
                ]
        self._slots = Readings(owners, [], entries, None)
        self._tensors = [
            value
            for held, _, value in entries
            # Tensors of inference mode count no writes.
            if isinstance(value, torch.Tensor) and not value.is_inference()
        ]
