"""Whether policies act with the state that they have, and whether what they do beside computing is
done: ``cargo xtask stale``.
"""
