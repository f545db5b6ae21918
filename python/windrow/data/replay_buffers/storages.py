"""Where frames of a buffer are kept."""

from windrow.data._storages import *
from windrow.data._torchrl_compat import LazyStackStorage as LazyStackStorage
