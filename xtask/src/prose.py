"""Finds comments and docstrings of the Python files below some folders, and prints them as JSON.

For each file, it prints line and column of each comment, and first and last line of each docstring.
"""

import ast
import io
import json
import os
import pathlib
import sys
import tokenize

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def files(folder):
    """The files below ``folder``, in order, without those of tools."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name not in ("__pycache__", "target") and not name.startswith(".")
        )
        yield from (
            pathlib.Path(parent, name) for name in sorted(names) if name.endswith((".py", ".pyi"))
        )


def prose(path):
    text = path.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    documented = [
        node for node in ast.walk(ast.parse(text, str(path))) if isinstance(node, DOCUMENTED)
    ]
    texts = [
        node.body[0] for node in documented if ast.get_docstring(node, clean=False) is not None
    ]
    return {
        "path": path.as_posix(),
        "comments": [token.start for token in tokens if token.type == tokenize.COMMENT],
        "docstrings": [(text.lineno, text.end_lineno) for text in texts],
    }


if __name__ == "__main__":
    json.dump([prose(path) for folder in sys.argv[1:] for path in files(folder)], sys.stdout)
