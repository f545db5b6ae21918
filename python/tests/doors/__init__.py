"""Faults of environments behind every door: what is noticed, after how long, who is named, and
which rows come.
"""
