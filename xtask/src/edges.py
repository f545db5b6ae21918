"""Finds which modules of a package depend on which others, in whatever form they name them.

Edges are of four kinds. ``imports`` come from import statements, also within functions. ``strings``
come from names of modules in constants, as in ``module("windrow.x")``. ``packages`` come from names
that a module reaches through a package: they lead to the module that defines the name, which is
found by the imports of the package's ``__init__``, those for type checkers included, and by its
tables of lazy names. ``tables`` come from names of modules in tables at the top of a module that
are computed from constants.

Re-exports of an ``__init__`` are no edges, and neither are the parent packages that Python imports
with each module, nor imports for type checkers alone.
"""

import ast

KINDS = ("imports", "strings", "packages", "tables")


class Package:
    """The modules of a package as syntax trees by name.

    ``packages`` are the names of the modules that are an ``__init__``.
    """

    def __init__(self, trees, packages):
        self.trees = trees
        self.packages = packages
        self.homes = {name: self._homes(name) for name in packages}

    def edges(self, name):
        """The modules that ``name`` depends on, by kind."""
        tree = self.trees[name]
        nodes = list(running(tree))
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        found, aliases = {kind: set() for kind in KINDS}, {}
        for alias, module, attribute in self._imported(name, nodes):
            place = self._place(module, attribute)
            if place in self.packages:
                aliases[alias] = place
            elif name not in self.packages or alias in used:
                direct = place in (module, f"{module}.{attribute}")
                found["imports" if direct else "packages"].add(place)
        aliases.update(self._lazy(nodes))
        inner = {node.value for node in nodes if isinstance(node, ast.Attribute)}
        for node in nodes:
            if isinstance(node, ast.Attribute) and node not in inner:
                found["packages"].add(self._reached(node, aliases))
        found["packages"].update(
            aliases[alias] for alias in aliases.keys() & used - reached_from(nodes)
        )
        prose = {node.value for node in nodes if isinstance(node, ast.Expr)}
        constants = (node for node in nodes if isinstance(node, ast.Constant) and node not in prose)
        found["strings"] = modules_in(node.value for node in constants)
        found["tables"] = modules_in(computed(tree).values())
        return {kind: sorted(names & self.trees.keys() - {name}) for kind, names in found.items()}

    def _imported(self, name, nodes):
        """The names that imports of ``name`` introduce, each with a module and the name in it.

        The name in it is None if the module is imported as a whole.
        """
        parts = name.split(".") if name in self.packages else name.split(".")[:-1]
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.asname or alias.name.partition(".")[0], alias.name, None
            elif isinstance(node, ast.ImportFrom):
                above = parts[: len(parts) - node.level + 1] if node.level else []
                base = ".".join([*above, *filter(None, [node.module])])
                for alias in node.names:
                    yield alias.asname or alias.name, base, alias.name

    def _homes(self, package):
        """The definitions of the names of ``package``, each as a module and the name in it."""
        nodes = list(ast.walk(self.trees[package]))
        found = {}
        for node in nodes:
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    name, home = (getattr(part, "value", None) for part in (key, value))
                    if isinstance(name, str) and isinstance(home, str):
                        # A home that begins with a dot is beside the package.
                        above = (
                            package.rpartition(".")[0] + home
                            if home.startswith(".")
                            else f"{package}.{home}"
                        )
                        if above in self.trees:
                            found[name] = (above, name)
        found |= {alias: (module, name) for alias, module, name in self._imported(package, nodes)}
        return found

    def _place(self, module, name, depth=0):
        """The module that defines ``name``, as reached through ``module``."""
        if name is None:
            return module
        if f"{module}.{name}" in self.trees:
            return f"{module}.{name}"
        # Two packages that re-export a name from each other would make this recurse for ever.
        home = self.homes.get(module, {}).get(name) if depth < 8 else None
        if home == (module, name):
            # The package imports a module of another language from itself.
            return f"{module}.{name}"
        return self._place(*home, depth + 1) if home else module

    def _lazy(self, nodes):
        """Variables that hold packages, as of ``a, b = module("package"), module("other")``."""
        for node in nodes:
            if isinstance(node, ast.Assign):
                target, value = node.targets[0], node.value
                pairs = [(target, value)]
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    pairs = zip(target.elts, value.elts, strict=False)
                for name, call in pairs:
                    known = imported_by(call)
                    if isinstance(name, ast.Name) and known in self.packages:
                        yield name.id, known

    def _reached(self, node, aliases):
        """The module that ``package.name`` or ``package.module.name`` leads to."""
        names = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        place = aliases.get(node.id) if isinstance(node, ast.Name) else None
        while names and place in self.packages:
            place = self._place(place, names.pop())
        return place


def imported_by(call):
    """The module that ``module("package")`` imports, or a function or ``import_module`` of another
    module; None for what is no such call. Other methods, as ``get`` of dictionaries, import none.
    """
    if not isinstance(call, ast.Call) or not call.args:
        return None
    is_import = getattr(call.func, "attr", "import_module") == "import_module"
    return getattr(call.args[0], "value", None) if is_import else None


def reached_from(nodes):
    """The names that stand before a dot."""
    return {
        node.value.id
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }


def computed(tree):
    """The values of constants and tables at the top of a module that call nothing."""
    values = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if not any(
                isinstance(part, (ast.Call, ast.Attribute, ast.Lambda))
                for part in ast.walk(node.value)
            ):
                code = compile(ast.Expression(node.value), "constant", "eval")
                try:
                    values[node.targets[0].id] = eval(code, {"__builtins__": {}, **values})
                except (NameError, TypeError):
                    # It needs something that isn't a constant.
                    continue
    return values


def modules_in(values):
    """The texts in constants that may name a module, each up to a colon."""
    found, values = set(), list(values)
    while values:
        value = values.pop()
        if isinstance(value, str) and "." in value:
            found.add(value.partition(":")[0])
        elif isinstance(value, dict):
            values.extend(value.values())
        elif isinstance(value, (tuple, list, set, frozenset)):
            values.extend(value)
    return found


def running(node):
    """The nodes below this one, without those that only type checkers read."""
    below = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        # Of `if not TYPE_CHECKING`, everything runs but its `else`.
        below = node.body if isinstance(node.test, ast.UnaryOp) else node.orelse
    else:
        yield node
    for child in below:
        yield from running(child)
