"""Functions for batches that collectors have delivered."""

from windrow.data._postprocs import split_trajectories

__all__ = ["split_trajectories"]
