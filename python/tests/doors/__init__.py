"""Faults of environments behind every door, an entry point of the package that runs environments:
which faults are noticed, after how long, which environment the message names, and which rows come.
"""
