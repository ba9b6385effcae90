"""What a Python file says: the modules that it names, and its syntax without what changes nothing that it does.

Every Python that runs this project reads the same of a file. Nothing is imported here but the standard library.
"""

import ast
import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any, NamedTuple


class Source(NamedTuple):
    """What a file says, and the modules that it may import, by their full names."""

    meaning: str
    imports: tuple[str, ...]


def read_source(text: str, package: str = "") -> Source:
    """A file's syntax and imports; `package` is that of its module, which relative imports start from.

    Comments, layout, docstrings, texts of errors and what stands under `if TYPE_CHECKING:` are left out. The imports
    are all that may be a module: `a.b` of `from a import b`, a function or not, and `a.b` where `a` is imported and
    `a.b` is used, since packages may import their modules when they are asked for.
    """
    tree = _Bare().visit(ast.parse(text))
    return Source(_told(tree), tuple(dict.fromkeys(_imports(tree, package))))


class _Bare(ast.NodeTransformer):
    """Takes away docstrings, what errors say, and what is there for a type checker alone."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [line for line in node.body if not _is_text(line)]
        return node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        named = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", "")
        return node.orelse if named == "TYPE_CHECKING" else node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.exc, ast.Call):
            node.exc.args = [ast.Constant("") if _is_written(given) else given for given in node.exc.args]
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Join the texts of an f-string, which Pythons divide differently."""
        self.generic_visit(node)
        values: list[Any] = []
        for value in node.values:
            if not isinstance(value, ast.Constant):
                values.append(value)
            elif values and isinstance(values[-1], ast.Constant):
                values[-1] = ast.Constant(str(values[-1].value) + str(value.value))
            elif value.value:
                values.append(value)
        node.values = values
        return node


def _is_written(given: ast.expr) -> bool:
    """Whether an argument is a text that stands there."""
    return isinstance(given, ast.JoinedStr) or (isinstance(given, ast.Constant) and isinstance(given.value, str))


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def _told(value: Any) -> str:
    """A tree as text. Fields that are empty are left out: a Python does not know those of a later one."""
    if isinstance(value, list):
        return f"[{', '.join(map(_told, value))}]"
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = [f"{name}={_told(item)}" for name, item in ast.iter_fields(value) if item is not None and item != []]
    return f"{type(value).__name__}({', '.join(fields)})"


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    named: dict[str, set[str]] = {}  # what a name of the file may stand for
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom, ast.Attribute))]
    for node in nodes:
        for alias, module in _bound(node, package):
            yield module
            name = alias.asname or alias.name.partition(".")[0]
            is_top = isinstance(node, ast.Import) and not alias.asname  # `import a.b` binds a
            named.setdefault(name, set()).add(name if is_top else module)
    for node in nodes:
        name, used = _dotted(node)
        if used:
            yield from (module + used for module in sorted(named.get(name, ())))


def _bound(node: ast.AST, package: str) -> Iterator[tuple[ast.alias, str]]:
    """Every name that an import binds, and the module that it may be."""
    if isinstance(node, ast.Import):
        yield from ((alias, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        with contextlib.suppress(ImportError):  # relative, and of no package: it fails when it runs
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from ((alias, f"{module}.{alias.name}") for alias in node.names)


def _dotted(node: ast.AST) -> tuple[str, str]:
    """`a.b.c` as ("a", ".b.c"); ("", …) where it does not begin with a name."""
    if isinstance(node, ast.Attribute):
        name, rest = _dotted(node.value)
        return name, f"{rest}.{node.attr}"
    return getattr(node, "id", "") if isinstance(node, ast.Name) else "", ""
