"""What is done to batches before they are delivered."""

from windrow.data._postprocs import MultiStep

__all__ = ["MultiStep"]
