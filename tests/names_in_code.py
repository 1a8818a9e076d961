"""Finds out whether a file of the code has a function, class or method, without importing the file."""

from __future__ import annotations

import ast

from tests.processes import ROOT


def function_exists(path: str, name: str) -> bool:
    """Returns whether a file has a function, a class or an assigned name.

    Args:
        path: path of a file in the repository.
        name: name, such as "GradientHook.run" for a method.
    """
    body: list[ast.stmt] = ast.parse((ROOT / path).read_text()).body
    for part in name.split("."):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == part:
                body = node.body
                break
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == part for target in targets):
                body = []
                break
        else:
            return False
    return True
