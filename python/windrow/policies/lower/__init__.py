"""Reads a policy as a graph of operations, which the engine evaluates without torch."""
