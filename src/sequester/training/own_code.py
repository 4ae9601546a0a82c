"""The files of a user's own module: its own, and what it imports from beside it."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from importlib.machinery import all_suffixes
from pathlib import Path

from sequester.core.files import digest_of

_LIBRARIES = {"site-packages", "dist-packages"}


def digests(name: str) -> dict[str, str]:
    """SHA-256 of each file, by its place beside the module; empty if there is no such module.

    Imports are read from the text, those inside functions included, and followed as far as files
    lie in the folder from which the module is imported. Of an installed package, its own files
    count. What is imported by a name that is computed is not found.

    Args:
        name: `package.file` of the module.
    """
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # what is wrong with it, `build` says
        return {}
    if found is None or not found.origin or not Path(found.origin).is_file():
        return {}
    file, parts = Path(found.origin), name.split(".")
    root = file.parents[len(parts) - 1 + (file.stem == "__init__")]
    only = parts[0] if _LIBRARIES & set(root.parts) else None
    known: dict[Path, None] = {}
    pending = [(file, name), *_files(root, name)]
    while pending:
        file, module = pending.pop()
        if file not in known:
            known[file] = None
            for imported in _imports(file, module):
                if only is None or imported.partition(".")[0] == only:
                    pending.extend(_files(root, imported))
    return {str(file.relative_to(root)): digest_of(file) for file in sorted(known)}


def _files(root: Path, name: str) -> Iterator[tuple[Path, str]]:
    """What runs when `name` is imported, packages on the way included, and which module it is."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:depth])
        for suffix in all_suffixes():
            for file in (place.with_name(place.name + suffix), place / f"__init__{suffix}"):
                if file.is_file():
                    yield file, ".".join(parts[:depth])


def _imports(file: Path, module: str) -> Iterator[str]:
    """Dotted names that a file may import; `from a import b` may mean the module `a.b`."""
    if file.suffix != ".py":
        return
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    package = module.split(".") if file.stem == "__init__" else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
