"""Measures the Python files below a folder, and prints a list of what it found as JSON: functions,
prose, statements, imports and annotations.
"""

import ast
import io
import json
import pathlib
import sys
import tokenize

import edges

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)


def function(node, ends):
    """Lines count from the word ``def``, and the signature's to its colon."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    if positional and positional[0].arg in ("self", "cls"):
        del positional[0]
    return {
        "name": node.name,
        "line": node.lineno,
        "signature": ends[node.lineno] - node.lineno + 1,
        "lines": node.end_lineno - node.lineno + 1,
        "positional": len(positional) + (arguments.vararg is not None),
        "by_name": len(arguments.kwonlyargs) + (arguments.kwarg is not None),
    }


def signature_ends(tokens):
    """The line of the colon that ends each line with ``def``."""
    ends, depth, start = {}, 0, None
    for token in tokens:
        if token.type == tokenize.NAME and token.string == "def":
            start = token.start[0]
        elif token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
            if token.string == ":" and depth == 0 and start is not None:
                ends[start], start = token.start[0], None
    return ends


def prose(tree, tokens):
    """Lines of docstrings, and those that hold nothing but a comment."""
    lines = {
        token.start[0]
        for token in tokens
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
    }
    for text in filter(None, map(docstring, ast.walk(tree))):
        lines.update(range(text.lineno, text.end_lineno + 1))
    return len(lines)


def docstring(node):
    """The docstring of ``node``, as a statement; None where it has none."""
    if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        return node.body[0]
    return None


def statements(tree):
    """The number of statements, without docstrings."""
    every = list(ast.walk(tree))
    return sum(isinstance(node, ast.stmt) for node in every) - sum(
        docstring(node) is not None for node in every
    )


def public(node):
    """Functions and classes without a leading underscore, also within classes of this kind."""
    for child in node.body:
        if isinstance(child, (ast.ClassDef, *FUNCTIONS)) and not child.name.startswith("_"):
            yield child
            if isinstance(child, ast.ClassDef):
                yield from public(child)


def documentation(items):
    """The number of lines in the docstrings of ``items``."""
    texts = filter(None, map(docstring, items))
    return sum(text.end_lineno - text.lineno + 1 for text in texts)


def imports(tree, package, modules):
    """The modules among ``modules`` that a module of ``package`` imports when it runs.

    Imports within functions count, and those by ``module("name")``.
    """
    found = set()
    for node in edges.running(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "module"
            and node.args
        ):
            found.add(getattr(node.args[0], "value", None))
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            paths = [f"{base}.{alias.name}" for alias in node.names]
            found.update(path if path in modules else base for path in paths)
    return sorted(found & modules)


#: Names of modules, classes and methods that read pickled objects.
UNPICKLERS = {
    "pickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "marshal",
    "shelve",
    "joblib",
    "_objects",
    "Objects",
    "loads",
    "Unpickler",
    "recv",
}


def unpicklers(tree):
    """The names among :data:`UNPICKLERS` that a module imports or uses, or has in a text by which
    it could import them.
    """
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            paths = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            found.update(part for path in paths for part in path.split("."))
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 100
        ):
            found.update(node.value.split("."))
    return sorted(found & UNPICKLERS)


def any_shares(functions):
    """Parameters annotated as plain ``Any``, all that are annotated, then the same of results."""
    every = [node.args for node in functions]
    parameters = [
        one
        for some in every
        for one in (*some.posonlyargs, *some.args, some.vararg, *some.kwonlyargs, some.kwarg)
        if one
    ]
    shares = []
    for annotations in (
        [one.annotation for one in parameters],
        [node.returns for node in functions],
    ):
        written = [ast.unparse(annotation) for annotation in annotations if annotation is not None]
        shares += [sum(text in ("Any", "typing.Any") for text in written), len(written)]
    return shares


def module(path, root):
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def measure(path, root, package):
    name = module(path, root)
    text, tree = path.read_text(encoding="utf-8"), package.trees[name]
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    functions = sorted(
        (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)),
        key=lambda node: node.lineno,
    )
    ends = signature_ends(tokens)
    above, modules = list(path.relative_to(root.parent).parts[:-1]), set(package.trees)
    items = list(public(tree))
    return {
        "path": path.as_posix(),
        "module": name,
        "lines": len(text.splitlines()),
        "first": text.partition("\n")[0],
        "prose": prose(tree, tokens),
        "statements": statements(tree),
        "public": len(items),
        "documentation": documentation(items),
        "functions": [function(node, ends) for node in functions],
        "hidden_imports": sorted(
            {name for node in functions for name in imports(node, above, modules)}
        ),
        "edges": package.edges(name),
        "unpicklers": unpicklers(tree),
        "any_shares": any_shares(functions),
    }


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    paths = sorted(root.rglob("*.py"))
    trees = {
        module(path, root): ast.parse(path.read_text(encoding="utf-8"), str(path)) for path in paths
    }
    package = edges.Package(
        trees, {module(path, root) for path in paths if path.name == "__init__.py"}
    )
    json.dump([measure(path, root, package) for path in paths], sys.stdout)
