"""Replay buffers."""

from windrow.data._buffers import *
from windrow.data._named import *
