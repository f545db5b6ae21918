"""How frames of a buffer are chosen."""

from windrow.data._samplers import *
