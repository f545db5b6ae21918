"""Values in a module of Python of their own, which policies read."""

GAIN = (0.0, 0.0)
HELD = {"gain": (0.0, 0.0)}


def gain() -> tuple[float, float]:
    return GAIN


class Settings:
    gain = (0.0, 0.0)
