"""Worker processes: how they start, what they are sent, and what they send back. Nothing here is
for users.
"""
