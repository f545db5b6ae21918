"""Shows the arguments that :func:`windrow._arguments.takes` gives a method, in the groups of their
declaration.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

#: References of Sphinx, such as ``:meth:`~BaseCollector.shutdown```, in docstrings that ``help``
#: shows as they are.
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc|obj):`~?([^`]+)`")
_COMMON = "In most programs"
_UNUSED = "Taken for TorchRL's sake, without effect"


class Declared(griffe.Extension):
    """Replaces the one parameter of such a method by the arguments of its declaration."""

    def on_function(self, *, func: griffe.Function, loader: griffe.GriffeLoader, **_: Any) -> None:
        for decorator in func.decorators:
            name = re.fullmatch(r"takes\((\w+)\)", str(decorator.value))
            if name:
                self._show(func, loader.modules_collection[func.resolve(name[1])], loader)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            # Otherwise what an example prints is read as links.
            obj.docstring.value = re.sub(
                r"^(\s*)Example:$",
                r"\1Examples:",
                _without_roles(obj.docstring.value),
                flags=re.MULTILINE,
            )

    def _show(
        self, func: griffe.Function, declaration: griffe.Class, loader: griffe.GriffeLoader
    ) -> None:
        declaring = [*reversed(declaration.mro()), declaration]
        common = ast.literal_eval(
            next(
                (
                    str(cls.keywords["common"])
                    for cls in declaring[::-1]
                    if "common" in cls.keywords
                ),
                "()",
            )
        )
        said_of: dict[str, str] = {}
        groups: dict[str, list[str]] = {}
        parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
        for cls in declaring:
            heading = ast.literal_eval(str(cls.keywords.get("group", "'Arguments'")))
            for attribute in cls.members.values():
                value = attribute.value if attribute.is_attribute else None
                call = ast.parse(str(value), mode="eval").body if value else None
                if not isinstance(call, ast.Call) or ast.unparse(call.func) not in (
                    "argument",
                    "ignored",
                ):
                    continue
                keywords = {keyword.arg: keyword.value for keyword in call.keywords}
                said = self._text(call.args[0], cls.module)
                if ast.unparse(call.func) == "ignored":
                    group = _UNUSED
                else:
                    group = heading
                    if "more" in keywords:
                        said = f"{said}. {_capital(self._text(keywords['more'], cls.module))}"
                line = f"    {attribute.name}: {_without_roles(said)}"
                if attribute.name in common:
                    said_of[attribute.name] = line
                else:
                    groups.setdefault(group, []).append(line)
                if group == _UNUSED:
                    continue
                default = keywords.get("default")
                kind = griffe.ParameterKind.keyword_only
                if "kw_only" in keywords:
                    kind = griffe.ParameterKind.positional_or_keyword
                parameters.append(
                    griffe.Parameter(
                        attribute.name,
                        annotation=attribute.annotation,
                        kind=kind,
                        default=default and ast.unparse(default),
                    )
                )
        # Those that may be given by position come first.
        parameters.sort(key=lambda parameter: parameter.kind is griffe.ParameterKind.keyword_only)
        func.parameters = griffe.Parameters(*parameters)
        groups = {_COMMON: [said_of[name] for name in common], **groups}
        groups[_UNUSED] = groups.pop(_UNUSED, [])
        own = [func.docstring.value] if func.docstring else []
        sections = [
            "\n".join([f"Args: {title}", *lines]) for title, lines in groups.items() if lines
        ]
        text = "\n\n".join([*own, *sections])
        func.docstring = griffe.Docstring(
            text,
            parent=func,
            parser=loader.docstring_parser,
            parser_options=loader.docstring_options,
        )

    def _text(self, expression: ast.expr, module: griffe.Module) -> str:
        """What an expression says: a text, or the name of one in the module."""
        if isinstance(expression, ast.Name):
            return str(ast.literal_eval(str(module[expression.id].value)))
        return str(ast.literal_eval(expression))


def _without_roles(text: str) -> str:
    return _ROLE.sub(r"`\1`", text)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
