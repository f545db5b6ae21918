"""Operations on batches before collectors deliver them."""

from windrow.data._postprocs import MultiStep

__all__ = ["MultiStep"]
