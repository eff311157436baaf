"""Looks up targets in vLLM's sources: nothing of vLLM is imported."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

from hwtune.adapters.vllm.targets import Target

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def misfits(package: Path, targets: Iterable[Target]) -> list[str]:
    """What is not as the targets say, one clause each; empty when everything fits.

    Args:
        package: the folder ``vllm`` of an installation or of an unpacked wheel.
        targets: what to look for.
    """
    return [text for target in targets for text in _misfits(package, target)]


def _misfits(package: Path, target: Target) -> Iterator[str]:
    tree = _parse(package, target.module)
    if tree is None:
        yield f"{target.module} is missing"
        return
    node = _find(tree, target.name)
    if node is None:
        yield f"{target} is missing"
    elif isinstance(node, ast.ClassDef):
        yield from _class(tree, node, target)
    elif isinstance(node, _Function):
        yield from _function(node, target)


@functools.cache
def _parse(package: Path, module: str) -> ast.Module | None:
    _, *parts = module.split(".")
    place = package.joinpath(*parts)
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        try:
            return ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            continue
    return None


def _find(tree: ast.Module, name: str) -> ast.AST | None:
    """The definition behind a dotted name; a method may be inherited inside the module."""
    found: ast.AST | None = tree
    for part in filter(None, name.split(".")):
        found = _member(tree, found, part)
    return found


def _member(tree: ast.Module, owner: ast.AST | None, name: str) -> ast.AST | None:
    if not isinstance(owner, ast.Module | ast.ClassDef):
        return None
    for statement in _statements(owner.body):
        if name in _names(statement):
            return statement
    if isinstance(owner, ast.ClassDef):
        for base in _bases(tree, owner):
            inherited = _member(tree, base, name)
            if inherited is not None:
                return inherited
    return None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a body, also inside ``if`` and ``try``."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try):
                yield from _statements(getattr(statement, part, []))


def _names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {statement.name}
    if isinstance(statement, ast.Assign):
        return {target.id for target in statement.targets if isinstance(target, ast.Name)}
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return {statement.target.id}
    return set()


def _bases(tree: ast.Module, owner: ast.ClassDef) -> Iterator[ast.ClassDef]:
    names = {getattr(base, "value", base) for base in owner.bases}
    wanted = {node.id for node in names if isinstance(node, ast.Name)}
    yield from (s for s in tree.body if isinstance(s, ast.ClassDef) and s.name in wanted)


def _class(tree: ast.Module, node: ast.ClassDef, target: Target) -> Iterator[str]:
    known = _assigned(tree, node)
    for member in target.members:
        if member not in known and _member(tree, node, member) is None:
            yield f"{target} has no {member}"
    for name, expected in target.values:
        if _literal(_member(tree, node, name)) != expected:
            yield f"{target} does not set {name} = {expected}"


def _assigned(tree: ast.Module, node: ast.ClassDef) -> set[str]:
    """Attributes that a method of the class or of its bases here sets on self."""
    found = {
        inner.attr
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute)
        and isinstance(inner.ctx, ast.Store)
        and isinstance(inner.value, ast.Name)
        and inner.value.id == "self"
    }
    return found.union(*(_assigned(tree, base) for base in _bases(tree, node)))


def _literal(node: ast.AST | None) -> object:
    if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
        return node.value.value
    return None


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, target: Target) -> Iterator[str]:
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    taken = tuple(name for name in names if name not in ("self", "cls"))
    wanted = target.parameters
    if taken[: len(wanted)] != wanted:
        yield f"{target} takes ({', '.join(taken)}), not ({', '.join(wanted)}, …)"
