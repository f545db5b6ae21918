"""Replay buffers."""

from windrow.data._buffers import *
