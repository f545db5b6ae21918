"""What modules read of another module of Python."""

GAIN = (0.0, 0.0)
HELD = {"gain": (0.0, 0.0)}


def gain() -> tuple[float, float]:
    return GAIN


class Settings:
    gain = (0.0, 0.0)
