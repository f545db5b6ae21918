"""Modules that only TorchRL has: ``windrow.weight_update``, and those below ``windrow.collectors``, ``windrow.data`` and ``windrow.envs``,
such as ``windrow.envs.libs.vmas``."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any


class _Finder:
    """Finds them after all others. It answers for names of windrow alone; a module is a view of TorchRL's, in which windrow's own
    classes stand for TorchRL's where the package around the module has them.
    """

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, *rest = name.split(".")
        known = rest == ["weight_update"] or (len(rest) > 1 and rest[0] in ("collectors", "data", "envs"))
        if package != "windrow" or not known or any(n.startswith("_") for n in rest):
            return None
        # Imported here, and no base class of `importlib.abc`: these take longer than all of windrow.
        import importlib.util

        try:
            theirs = importlib.util.find_spec(_of_torchrl(name))
        except ModuleNotFoundError:
            return None
        return theirs and ModuleSpec(name, self, is_package=theirs.submodule_search_locations is not None)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        theirs = importlib.import_module(_of_torchrl(module.__name__))
        around = sys.modules[module.__name__.rpartition(".")[0]]

        def found(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            value = getattr(theirs, name)
            own = getattr(around, name) if name in getattr(around, "__all__", ()) else vars(around).get(name)
            return own if isinstance(own, type) and own.__module__.startswith("windrow.") else value

        vars(module).update(__getattr__=found, __doc__=theirs.__doc__)


def _of_torchrl(name: str) -> str:
    return f"torchrl.{name.partition('.')[2]}"


sys.meta_path.append(_Finder())
