"""Policies: the form in which the engine takes them, their weights, and what torch evaluates.
Nothing here is for users.
"""
