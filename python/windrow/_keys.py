"""Keys of nested entries, as tensordict spells them."""

from __future__ import annotations

Key = str | tuple[str, ...]


def path(key: Key) -> tuple[str, ...]:
    """The names of a key, outermost first."""
    return (key,) if isinstance(key, str) else tuple(key)


def short(names: tuple[str, ...]) -> Key:
    """Names as tensordict spells them: a string where there is one."""
    return names[0] if len(names) == 1 else names
