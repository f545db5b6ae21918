"""Replay buffers and what is done to batches."""
