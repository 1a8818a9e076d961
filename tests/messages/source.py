"""Finds the messages in the source of tfdist, without running it.

A message is the text of an exception, of a log call at the level warning or above, and every other text of three words
or more that is not help of an option, a docstring, an information line of the log, or a name. Placeholders are written
as <name>. A message that is put together in several places (constants, local variables, arguments of a function that
writes the sentence) is put together here, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.messages.native_source import native_texts

ROOT = Path(__file__).resolve().parents[2]
LEVELS = ("warning", "error", "exception", "critical")
LEAST_WORDS = 3
# Texts in the arguments of these calls are no messages.
SILENT = re.compile(
    r"DEFINE_\w+|Mend|add_argument|ArgumentParser|add_parser|info|debug|InThread|Thread|patch_method|import_module"
    r"|getattr|hasattr|setattr|compile|fullmatch|match|search|Path|Table|add_column|startswith|endswith|removeprefix"
)
# These files are command lines: of texts that are not raised, only those that begin like an error are messages there.
COMMAND_LINES = (
    *("_cli.py", "cli.py", "args.py", "completion.py", "bench/__init__.py", "bench/extra.py"),
    # Options of schedulers, and the text of files for them.
    *(f"render/{name}.py" for name in ("jobset", "kubernetes", "ray", "sagemaker", "slurm", "trainjob", "vertex")),
)
Bindings = Mapping[str, str]


@dataclass(frozen=True)
class Message:
    """A text that tfdist can write, and where it does so."""

    path: str
    line: int
    text: str
    certain: bool


@dataclass
class Module:
    """What is known of a file before its texts are read."""

    path: Path
    tree: ast.Module
    constants: dict[str, ast.expr] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    functions: list[ast.FunctionDef] = field(default_factory=list)
    calls: dict[str, list[tuple[ast.Call, ast.AST | None]]] = field(default_factory=dict)
    consumed: set[ast.expr] = field(default_factory=set)


@cache
def module(path: Path) -> Module:
    """Returns a file's constants, imports and functions."""
    found = Module(path, ast.parse(path.read_text()))
    for node in found.tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.constants[node.targets[0].id] = node.value
    for node in ast.walk(found.tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tfdist"):
            found.imports |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.FunctionDef):
            found.functions.append(node)
    found.calls = noted_calls(found)
    return found


def is_text(node: ast.AST | None) -> bool:
    """Says whether an expression is a text, or one of two texts."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return is_text(node.left) or is_text(node.right)
    if isinstance(node, ast.IfExp):
        return is_text(node.body) or is_text(node.orelse)
    if isinstance(node, ast.BoolOp):
        return is_text(node.values[-1])
    return isinstance(node, ast.JoinedStr)


def placeholder(node: ast.expr) -> str:
    """Returns a name for a value that is only known when the program runs."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) if name != "__name__":
            return name.strip("_").lower()
        case ast.Attribute(value=value):
            return "class" if isinstance(value, ast.Call) else placeholder(value)
        case ast.Constant(value=value):
            return str(value)
        case ast.Call(func=ast.Name(id="len"), args=[value]):
            return f"number of {placeholder(value)}"
        case ast.Call(func=ast.Name(id="getattr")):
            return "value"
        case ast.Call(args=[*_, value]) if not isinstance(value, ast.Constant) and ast.unparse(value) != "self":
            return placeholder(value)
        case ast.Call(func=ast.Attribute(value=value)) | ast.Subscript(value=value) | ast.Starred(value=value):
            return placeholder(value)
        case ast.Call(func=value) | ast.GeneratorExp(elt=value) | ast.ListComp(elt=value) | ast.BinOp(left=value):
            return placeholder(value)
        case ast.IfExp(body=value) | ast.BoolOp(values=[value, *_]) | ast.NamedExpr(target=value):
            return placeholder(value)
    return "value"


class Reader:
    """Turns the expressions of one function into texts."""

    def __init__(self, file: Module, function: ast.AST | None = None, bindings: Bindings | None = None) -> None:
        self._file = file
        self._bindings = dict(bindings or {})
        self._locals: dict[str, list[ast.expr | None]] = {}
        for node in ast.walk(function) if function else ():
            if isinstance(node, ast.Assign | ast.AugAssign | ast.NamedExpr | ast.For | ast.comprehension):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                plain = isinstance(node, ast.Assign) and len(targets) == 1
                for name in (n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)):
                    self._locals.setdefault(name.id, []).append(node.value if plain else None)

    def text(self, node: ast.expr) -> str:
        """Returns the text of an expression; what is not known becomes <a placeholder>."""
        match node:
            case ast.Constant(value=str(value)):
                return value
            case ast.JoinedStr(values=values):
                return "".join(map(self.text, values))
            case ast.FormattedValue(value=value):
                return self.text(value)
            case ast.BinOp(left=left, op=ast.Add(), right=right) if is_text(node):
                return self.text(left) + self.text(right)
            case ast.IfExp(body=one, orelse=other) | ast.BoolOp(values=[one, other]) if is_text(node):
                return f"[{' | '.join(sorted(filter(None, (self.text(one), self.text(other)))))}]"
            case ast.Name(id=name):
                return self._named(name)
        return f"<{placeholder(node)}>"

    def logged(self, call: ast.Call) -> str:
        """Returns the text of a log call, with its arguments in the places of %s and %d."""
        first, *rest = call.args
        texts = [self.text(value) for value in rest]
        return re.sub(r"%[-.\d]*[sdrf]", lambda _: texts.pop(0) if texts else "<value>", self.text(first))

    def _named(self, name: str) -> str:
        if name in self._bindings:
            return self._bindings[name]
        if name in self._locals:
            # While a name is looked up it is not known: a parameter may be replaced by a text that contains it.
            values = self._locals.pop(name)
            known = len(values) == 1 and is_text(values[0])
            text = self.text(values[0]) if known else f"<{name.strip('_').lower()}>"
            self._locals[name] = values
            if known:
                self._file.consumed.add(values[0])
            return text
        elif is_text(value := self._file.constants.get(name)):
            self._file.consumed.add(value)
            return Reader(self._file).text(value)
        elif name in self._file.imports:
            where, original = self._file.imports[name]
            path = ROOT / f"{where.replace('.', '/')}.py"
            if path.exists() and is_text(value := module(path).constants.get(original)):
                module(path).consumed.add(value)
                return Reader(module(path)).text(value)
        return f"<{name.strip('_').lower()}>"


def noted_calls(file: Module) -> dict[str, list[tuple[ast.Call, ast.AST | None]]]:
    """Returns by name the calls of functions that may be those of the file, and the functions that make them."""
    found: dict[str, list[tuple[ast.Call, ast.AST | None]]] = {}
    for function in [*file.functions, None]:
        for node in own_nodes(function or file.tree):
            match node:
                case (
                    ast.Call(func=ast.Name(id=called))
                    | ast.Call(func=ast.Attribute(value=ast.Name(id="self" | "cls"), attr=called))
                ):
                    found.setdefault(called, []).append((node, function))
    return found


def own_nodes(root: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes below one, without those in functions below it."""
    for child in ast.iter_child_nodes(root):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from own_nodes(child)


def parameters(function: ast.FunctionDef) -> list[str]:
    """Returns the names of a function's parameters in the order of the arguments of a call."""
    names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def given_texts(file: Module, function: ast.FunctionDef, used: set[str]) -> list[Bindings]:
    """Returns which arguments are texts, for each call of a function; empty ones stand for calls that give none."""
    names = parameters(function)
    found: list[Bindings] = []
    for call, caller in file.calls.get(function.name, []):
        given = {
            **dict(zip(names, call.args, strict=False)),
            **{key.arg: key.value for key in call.keywords if key.arg},
        }
        texts = {
            name: value
            for name, value in given.items()
            if name in used and is_text(value) and ast.unparse(value) != "''"
        }
        file.consumed.update(texts.values())
        bindings = {name: Reader(file, caller).text(value) for name, value in texts.items()}
        if bindings not in found:
            found.append(bindings)
    return found


Found = tuple[ast.expr, ast.Call | None, bool]


def texts(node: ast.AST, silent: bool = False, certain: bool = False) -> Iterator[Found]:
    """Yields the largest texts below a node, the log call whose first argument the text is, and if it is a message."""
    if isinstance(node, ast.expr) and is_text(node):
        if not silent:
            yield node, None, certain
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef) or (
            isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        ):
            continue  # A function of its own, or a docstring.
        if isinstance(child, ast.Call):
            called = child.func.attr if isinstance(child.func, ast.Attribute) else getattr(child.func, "id", "")
            if called in LEVELS and child.args and is_text(child.args[0]):
                yield child.args[0], child, True
            else:
                yield from texts(child, silent or bool(SILENT.fullmatch(called)), certain)
        else:
            yield from texts(child, silent, certain or isinstance(child, ast.Raise))


def words(text: str) -> int:
    """Counts the words of a text; placeholders count as one word together."""
    known = re.sub(r"<[^<>]*>", "", text)
    return len(re.findall(r"(?<![\w./-])[A-Za-z][a-z']*(?![\w/=(])", known)) + (known != text)


def in_file(path: Path) -> list[Message]:
    """Returns the messages of one file."""
    file = module(path)
    found: list[tuple[ast.expr, str, bool]] = []
    for function in [None, *file.functions]:
        for node, log_call, certain in texts(function or file.tree):
            bindings: list[Bindings] = []
            if function is not None and not log_call:
                used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
                bindings = given_texts(file, function, used & set(parameters(function)))
            for binding in bindings or [{}]:
                reader = Reader(file, function, binding)
                text = reader.logged(log_call) if log_call else reader.text(node)
                text = re.sub(r"%[-.\d]*[sdrf]\b", "<value>", text)
                if not certain and path.as_posix().endswith(COMMAND_LINES) and "expected" not in text:
                    continue
                if words(text) >= (1 if certain else LEAST_WORDS) and " " in text.strip():
                    found.append((node, " ".join(text.split()), certain))
    where = path.relative_to(ROOT).as_posix()
    return [Message(where, node.lineno, text, certain) for node, text, certain in found if node not in file.consumed]


@cache
def messages() -> tuple[Message, ...]:
    """Returns all messages of tfdist and tfdist-native, file by file."""
    paths = sorted((ROOT / "tfdist").rglob("*.py"))
    for path in paths:
        in_file(path)  # Notes which constants are parts of the sentences of other files.
    native = [
        Message(str(path.relative_to(ROOT)), line, text, certain=True)
        for path in sorted((ROOT / "native" / "cpp").glob("*.cc"))
        for line, text in native_texts(path)
    ]
    return (*(message for path in paths for message in in_file(path)), *native)
