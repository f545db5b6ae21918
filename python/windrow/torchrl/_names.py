"""How modules below ``windrow.torchrl`` answer names of TorchRL's modules of the same places."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What makes environments, collectors and buffers itself: read anew, so that it makes windrow's.
_READ = "trainers"
#: A name of something in torchrl.
_PATH = re.compile(r"torchrl(\.\w+)+")

#: Names that windrow has, with the modules that have them, by the package of TorchRL that they are
#: in, such as ``"collectors"``.
_OWN: dict[str, Mapping[str, str]] = {}


def register(package: str, homes: Mapping[str, Iterable[str]]) -> None:
    """Declares which names of ``package``, a module directly below ``windrow.torchrl``, windrow
    has.

    Args:
        homes: names by the modules of windrow that have them; later ones win.
    """
    _OWN[package.rpartition(".")[2]] = {
        name: home for home, names in homes.items() for name in names
    }


def stand_in(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of ``module``, below ``windrow.torchrl`` or this package
    itself.
    """
    theirs = module.removeprefix("windrow.")

    def found(name: str) -> object:
        if name == "__all__":
            # Without torchrl, there are no classes derived from its own.
            return _all(theirs) or sorted(
                name for name in _own(module) if hasattr(sys.modules[module], name)
            )
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = _found(module, theirs, name)
        # Later lookups find it without a call.
        setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        known = dir(importlib.import_module(theirs)) if _spec_of(theirs) else []
        return sorted(
            {
                *_own(module),
                *(
                    name
                    for name in (*known, *_modules_below(module, theirs))
                    if not name.startswith("_")
                ),
            }
        )

    return found, names


def _modules_below(module: str, theirs: str) -> list[str]:
    """Names of modules directly below ``module``, or below TorchRL's of the same place. None is
    imported.
    """
    spec = _spec_of(theirs)
    places = [
        *getattr(sys.modules[module], "__path__", ()),
        *((spec and spec.submodule_search_locations) or ()),
    ]
    return [found.name for found in pkgutil.iter_modules(places)]


def _found(module: str, theirs: str, name: str) -> object:
    home = _own(module).get(name)
    # `from package import module` asks for the attribute before it imports the module.
    below = f"{module}.{name}"
    try:
        if home is not None:
            return getattr(importlib.import_module(home), name)
        if below in sys.modules or (
            hasattr(sys.modules[module], "__path__") and importlib.util.find_spec(below) is not None
        ):
            return importlib.import_module(below)
    except ModuleNotFoundError as error:
        if _is_installed():
            raise
        # As `hasattr` and `help` expect; a statement that imports it raises the error itself.
        raise AttributeError(str(error)) from error
    library = importlib.import_module(theirs)
    if not hasattr(library, name):
        raise AttributeError(f"module {module!r} has no attribute {name!r}, nor has {theirs}")
    value = getattr(library, name)
    if isinstance(value, ModuleType) and value.__name__.partition(".")[0] == "torchrl":
        return importlib.import_module(f"windrow.{value.__name__}")
    return value


def _own(module: str) -> Mapping[str, str]:
    """Names that windrow has in ``module``: those of the package directly below ``windrow.torchrl``
    that it is in.
    """
    package = module.split(".")[2:3]
    return _OWN.get(package[0], {}) if package else {}


def _is_installed() -> bool:
    return _spec_of("torchrl") is not None


def _all(theirs: str) -> list[str]:
    """What ``from … import *`` takes of a module of TorchRL; nothing where torchrl is not
    installed.
    """
    if _spec_of(theirs) is None:
        return []
    module = importlib.import_module(theirs)
    public = [
        name
        for name, value in vars(module).items()
        if not (name.startswith("_") or isinstance(value, ModuleType))
    ]
    return list(getattr(module, "__all__", public))


def _spec_of(theirs: str) -> ModuleSpec | None:
    """Where a module of TorchRL is. The packages around it are not imported, as
    ``importlib.util.find_spec`` does.
    """
    names = theirs.split(".")
    try:
        spec = importlib.util.find_spec(names[0])
    except (ModuleNotFoundError, ValueError):
        return None
    for depth in range(2, len(names) + 1):
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(".".join(names[:depth]), list(spec.submodule_search_locations))
    return spec


def _spec_of_own(place: str) -> ModuleSpec | None:
    """Where windrow's module of the same place is, which answers where torchrl is not installed."""
    try:
        return importlib.util.find_spec(f"windrow.{place}")
    except ModuleNotFoundError:
        return None


def _spec_without(name: str, place: str) -> ModuleSpec | None:
    """What there is of the module ``name`` where torchrl is not installed.

    Raises:
        ModuleNotFoundError: it is no module, nor a name, of windrow's.
    """
    own = _spec_of_own(place)
    if own is not None:
        return ModuleSpec(name, _View(), origin=own.origin, is_package=True)  # type: ignore[arg-type]
    parent, _, last = name.rpartition(".")
    if last in _own(parent) and hasattr(sys.modules.get(parent), last):
        return None
    raise ModuleNotFoundError(
        f"windrow.torchrl has no {place} of its own, and torchrl, which may have it, is not installed: pip install torchrl",
        name="torchrl",
    )


def _spec_of_alias(theirs: str) -> ModuleSpec | None:
    """A module that TorchRL's packages enter into ``sys.modules`` under another name as they are
    imported.
    """
    try:
        module = importlib.import_module(theirs)
    except ModuleNotFoundError:
        return None
    return ModuleSpec(theirs, None, is_package=hasattr(module, "__path__"))


def find_below(package: str) -> None:
    """Lets Python find all modules of torchrl below ``package``, which stands in for it."""
    sys.meta_path.append(_Finder(package))


class _Finder:
    """Finds modules below ``package`` that have no file of their own, after all others.

    Where torchrl is not installed, each module below is a package: Python looks for a name that a
    package lacks among its modules, so that ``from ... import name`` ends in the error of this one.
    """

    def __init__(self, package: str) -> None:
        self._above = f"{package}."

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(self._above):
            return None
        place = name.removeprefix(self._above)
        if not _is_installed():
            return _spec_without(name, place)
        theirs = (
            _spec_of(f"torchrl.{place}")
            or _spec_of_own(place)
            or _spec_of_alias(f"torchrl.{place}")
        )
        if theirs is None:
            return None
        is_read = place.startswith(_READ) and theirs.origin is not None
        loader = _Renamed(theirs.origin) if is_read else _View()  # type: ignore[arg-type]
        return ModuleSpec(
            name,
            loader,  # type: ignore[arg-type]
            origin=theirs.origin,
            is_package=theirs.submodule_search_locations is not None,
        )


class _View:
    """Makes a module that answers the names of TorchRL's."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        found, names = stand_in(module.__name__)
        vars(module).update(
            __getattr__=found,
            __dir__=names,
            __doc__=f"As ``{module.__name__.removeprefix('windrow.')}``.",
        )


class _Renamed:
    """Makes a module of TorchRL's source at ``path``, in which ``windrow.torchrl`` stands for
    ``torchrl``, as in a script of a user.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # No byte code is written: it would lie where TorchRL's does.
        tree = _Rename().visit(ast.parse(Path(self._path).read_bytes(), self._path))
        vars(module).update(__file__=self._path)
        exec(compile(ast.fix_missing_locations(tree), self._path, "exec"), vars(module))


class _Rename(ast.NodeTransformer):
    """Renames ``torchrl`` in imports, and in texts that name something in it, such as
    ``"torchrl.envs.GymEnv"``.
    """

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.level == 0 and node.module is not None:
            node.module = _renamed(node.module)
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        for alias in node.names:
            if alias.name == "torchrl" or alias.asname is not None:
                alias.asname = alias.asname or alias.name
                alias.name = _renamed(alias.name)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and _PATH.fullmatch(node.value):
            node.value = _renamed(node.value)
        return node


def _renamed(path: str) -> str:
    return f"windrow.{path}" if path.partition(".")[0] == "torchrl" else path
