"""Messages to a :class:`windrow.modules.RemoteServer` that no client sends, made as messages are:
see ``__main__``.
"""
