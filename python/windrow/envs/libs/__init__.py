"""Environments of other libraries, where TorchRL has them."""
