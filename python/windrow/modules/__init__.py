"""Policies."""

from windrow.modules._random import RandomPolicy

__all__ = ["RandomPolicy"]
