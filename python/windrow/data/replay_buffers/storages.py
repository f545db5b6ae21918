"""Where frames of a buffer are kept."""

from windrow.data._storages import *
