"""Places where Python keeps what a policy reads, and whether they hold what they held."""

from __future__ import annotations

import builtins
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from windrow._windrow import Readings

#: In the place of values that are not there.
MISSING = object()


class Places:
    """Places, each with what it holds when it is noted.

    Other threads may change them meanwhile: who checks what a place holds notes it before, or notes
    the very value that was checked.
    """

    def __init__(self) -> None:
        self._sizes: list[tuple[Any, int]] = []
        self._kinds: list[tuple[object, type]] = []
        self._entries: list[tuple[dict[Any, Any], Any, Any]] = []
        self._orders: list[tuple[dict[Any, Any], list[Any]]] = []
        self._items: list[tuple[list[Any], int, Any]] = []
        self._functions: dict[int, tuple[Any, Any, Any, Any]] = {}
        self._cells: list[tuple[types.CellType, Any]] = []
        self._noted: set[tuple[int, Any]] = set()

    def readings(
        self,
        tensors: Sequence[tuple[Any, Any, Any]] = (),
        parts: Sequence[Readings] = (),
    ) -> Readings:
        """Says whether all places that are noted by now hold what they held.

        Args:
            tensors: each with the type and shape that it had.
            parts: further readings.
        """
        return Readings(
            self._sizes,
            self._kinds,
            self._entries,
            MISSING,
            orders=self._orders,
            items=self._items,
            functions=list(self._functions.values()),
            cells=self._cells,
            tensors=tensors,
            parts=parts,
        )

    def size(self, held: Any) -> None:
        """Notes how many values there are in a container."""
        self._sizes.append((held, len(held)))

    def kind(self, value: object) -> None:
        """Notes the class of an object."""
        self._kinds.append((value, type(value)))

    def entry(self, held: dict[Any, Any], key: Any) -> Any:
        """Notes an entry of a dictionary, and returns it; :data:`MISSING` where there is none."""
        value = held.get(key, MISSING)
        self.note(held, key, value)
        return value

    def note(self, held: dict[Any, Any], key: Any, value: object) -> None:
        """Notes that an entry of a dictionary is ``value``, the first time that it is asked to."""
        if not self.is_noted(held, key):
            self._noted.add((id(held), key))
            self._entries.append((held, key, value))

    def is_noted(self, held: dict[Any, Any], key: Any) -> bool:
        return (id(held), key) in self._noted

    def whole(self, held: dict[Any, Any] | list[Any]) -> None:
        """Notes all entries of a dictionary, or items of a list, in their order, and how many there
        are.
        """
        self.size(held)
        if isinstance(held, list):
            self._items += [(held, number, one) for number, one in enumerate(held)]
            return
        self.order(held)
        for key in held:
            self.entry(held, key)

    def order(self, held: dict[Any, Any]) -> None:
        """Notes in which order the keys of a dictionary come."""
        if len(held) > 1:
            self._orders.append((held, list(held)))

    def function(self, function: types.FunctionType) -> bool:
        """Notes what a function is made of, but for its cells; False if it is noted already."""
        if id(function) in self._functions:
            return False
        made = function.__code__, function.__defaults__, function.__kwdefaults__
        self._functions[id(function)] = (function, *made)
        return True

    def cell(self, cell: types.CellType, held: object) -> None:
        """Notes that a closure has ``held`` in a cell."""
        self._cells.append((cell, held))

    def looked_up(self, code: types.CodeType, scope: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """Notes what the names in ``code`` give: in its globals ``scope``, in those of Python, and
        in modules below them. Gives each that is no module, with its name.
        """
        names = dict.fromkeys(code.co_names)
        for name in names:
            if name in scope:
                below = [(name, self.entry(scope, name))]
            elif name in vars(builtins):
                # Globals come first.
                self.entry(scope, name)
                below = [(name, self.entry(vars(builtins), name))]
            else:
                continue
            while below:
                name, value = below.pop()
                if isinstance(value, types.ModuleType):
                    below += [
                        (inner, self.entry(vars(value), inner))
                        for inner in names
                        if inner in vars(value) and not self.is_noted(vars(value), inner)
                    ]
                else:
                    yield name, value


def contents(cell: types.CellType) -> object:
    """What a closure has in ``cell``; :data:`MISSING` for nothing."""
    try:
        return cell.cell_contents
    except ValueError:
        # Its variable was deleted, or not set yet.
        return MISSING


def slots(dictionaries: Iterable[dict[Any, Any]]) -> Readings:
    """Says whether ``dictionaries`` have the same entries as now, in the same order."""
    places = Places()
    for one in dictionaries:
        places.whole(one)
    return places.readings()
