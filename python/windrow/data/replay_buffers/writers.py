"""Which rows of a buffer frames are written to."""

from windrow.data._writers import *
