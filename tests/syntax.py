"""Statements of source text, for the tests that read code."""

from __future__ import annotations

import ast
from collections.abc import Iterator

BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement of a module, however deep: without expressions, a tenth of the nodes that `ast.walk` visits."""
    waiting: list[ast.AST] = [tree]
    for block in waiting:  # grows as it goes
        waiting.extend(one for one in ast.iter_child_nodes(block) if isinstance(one, BLOCKS))
        yield block
