"""Style as a test: what reviewers would otherwise have to say again and again."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "sequester").rglob("*.py"))
LINES_PER_FILE = 400
LINES_PER_FUNCTION = 60
PARAMETERS = 6

ids = [str(path.relative_to(ROOT)) for path in SOURCES]
each_source = pytest.mark.parametrize("path", SOURCES, ids=ids)


def functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


@each_source
def test_a_file_is_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES_PER_FILE


@each_source
def test_functions_are_short_and_take_few_parameters(path: Path) -> None:
    for function in functions(ast.parse(path.read_text())):
        assert function.end_lineno is not None
        length = function.end_lineno - function.body[0].lineno + 1
        assert length <= LINES_PER_FUNCTION, f"{function.name} has {length} lines"
        # Neither a verb's options nor a kernel's pointers are positions that a reader counts.
        marks = [ast.dump(decorator) for decorator in function.decorator_list]
        is_command = any("click" in mark or "'jit'" in mark for mark in marks)
        positional = [a for a in function.args.args if a.arg not in {"self", "cls"}]
        if not is_command:
            assert len(positional) <= PARAMETERS, f"{function.name} takes {len(positional)}"


@each_source
def test_only_core_makes_randomness(path: Path) -> None:
    if path.parent.name == "core":
        return
    banned = (
        r"torch\.(randn|rand|normal|bernoulli|randperm)\(|np\.random\.(?!Generator\b)"
        r"|random\.(random|gauss)\("
    )
    assert not re.findall(banned, path.read_text())


@each_source
def test_nothing_unsafe_is_loaded_and_nothing_is_left_undone(path: Path) -> None:
    banned = (
        r"\bpickle\b|torch\.load\(|yaml\.load\(|\beval\(|\bexec\(|TODO|FIXME|NotImplementedError"
    )
    text = re.sub(r"\.eval\(", "", path.read_text())
    assert not re.findall(banned, text)


def test_no_machine_path_is_tracked() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split("\n")
    if tracked == [""]:
        pytest.skip("not a git checkout")
    machine = re.compile(r"/" + r"work/|/tmp/" + r"dev|/root" + r"/")
    for name in tracked:
        path = ROOT / name
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ".txt", ".cpp", ".html", ""}:
            assert not machine.search(path.read_text(errors="ignore")), name


def test_every_error_number_has_one_meaning_and_a_row_in_the_docs() -> None:
    raised: set[str] = set()
    pattern = re.compile(
        r"(?:UsageError|LedgerRefusal|VerificationError|SequesterError)\(\s*(\d{3})\b"
    )
    for path in SOURCES:
        raised |= set(pattern.findall(path.read_text()))
    rows: list[str] = []
    for page in sorted((ROOT / "docs" / "errors").glob("*.md")):
        rows += re.findall(r"^\|\s*SQ-(\d{3})\s*\|", page.read_text(), flags=re.M)
    assert sorted(raised - set(rows)) == []
    assert len(rows) == len(set(rows)), sorted({row for row in rows if rows.count(row) > 1})
