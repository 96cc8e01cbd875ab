"""The shape of the code, held by tests: sizes, imports, words, and tests that mirror the package."""

import ast
import gc
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_FUNCTION, MAX_FILE = 70, 400
CORE_MAY_IMPORT = {"__future__", "array", "collections", "contextlib", "dataclasses", "enum", "functools",
    "heapq", "ipaddress", "itertools", "json", "loadgen.core", "math", "msgspec", "numpy", "operator", "random", "re",
    "struct", "types", "typing"}  # fmt: skip
CATCHES_ALL = {"loadgen/cli/app.py", "loadgen/engine.py", "loadgen/drivers/host.py"}  # own faults become a message
# Skip without root, Chromium or glibc; sleep between looks at another program.
SKIP_OR_SLEEP = {
    "tests/conftest.py",
    "tests/drivers/test_getaddrinfo.py",
    "tests/lab/test_runs.py",
    "tests/kube/binaries.py",  # helm and kind are built by `make e2e` only
    "tests/drivers/test_churn.py",
    "tests/kube/test_transport.py",
    "tests/kube/test_watch.py",
    "tests/simulation/test_against_lab.py",  # paces a burst
}  # a slow other side
# What runs from end to end test, in the lab (tests/lab/test_runs.py) and on clusters (e2e/test_runs.py).
IN_RUNS = (
    r"loadgen/(clock|progress|scenarios/keys|probes/node|lab/\w+|cli/\w+|report/(seconds|sources)|"
    r"kube/(clean|churn|daemonset|deployment|kindbed|local|logs|node|nodehelper|rollout|saved|scrape|testbed|workspace|"
    r"cni/\w+|calls))\.py"
)


def files(*patterns: str) -> list[Path]:
    found = sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()})
    assert found, f"no file matches {patterns}: the rule would hold of nothing"
    return found


def rel(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def nodes(path: Path) -> list[ast.AST]:
    gc.disable()  # CPython 3.11 breaks off when a finaliser runs in the middle of it (python/cpython#106905)
    try:
        return list(ast.walk(ast.parse(text(path), str(path))))
    finally:
        gc.enable()


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in nodes(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@cache
def imports(path: Path) -> frozenset[str]:
    """Every dotted name that a file imports; `from a import b` gives a and a.b, for b may be a module."""
    plain = {alias.name for n in nodes(path) if isinstance(n, ast.Import) for alias in n.names}
    froms = [(str(n.module), alias.name) for n in nodes(path) if isinstance(n, ast.ImportFrom) for alias in n.names]
    return frozenset(plain | {module for module, _ in froms} | {f"{module}.{name}" for module, name in froms})


def c_functions(path: Path) -> Iterator[tuple[int, int]]:
    """(first line, lines) of each top-level block after a parameter list. Braces in literals do not count."""
    depth, start, before = 0, 0, ""
    for number, line in enumerate(text(path).splitlines(), 1):
        code = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])+\'|//.*|/\*.*?\*/', "", line).strip()
        if depth == 0 and "{" in code:
            start = number if re.search(r"\)\s*\{", code) or before.endswith(")") else 0
        depth += code.count("{") - code.count("}")
        if depth == 0 and "}" in code and start:
            yield start, number - start + 1
        before = code or before


def long_functions() -> Iterator[str]:
    python = files("loadgen/**/*.py", "tests/**/*.py", "bench/**/*.py", "e2e/**/*.py", "setup.py")
    sizes = [(p, f.lineno, (f.end_lineno or 0) - f.lineno + 1) for p in python for f in functions(p)]
    sizes += [(p, at, size) for p in files("loadgen/**/*.c") for at, size in c_functions(p)]
    yield from (f"{rel(path)}:{at}: a function of {size} lines" for path, at, size in sizes if size > MAX_FUNCTION)


def long_files() -> Iterator[str]:
    sources = files(
        "loadgen/**/*.py", "loadgen/**/*.[ch]", "tests/**/*.py", "bench/**/*.py", "e2e/**/*.py", "scripts/*", "*.py"
    )
    yield from (f"{rel(path)}: {n} lines" for path in sources if (n := text(path).count("\n")) > MAX_FILE)


def no_docstring() -> Iterator[str]:
    yield from (rel(p) for p in files("loadgen/**/*.py") if text(p) and not ast.get_docstring(ast.parse(text(p))))


def leftovers() -> Iterator[str]:
    banned = r"\b(FIXME|TODO|XXX|HACK)\b|/work/|/tmp/exp|/root/|\bpypi\.org|pythonhosted\.|\bdeb\.debian|npmjs\.org"
    code = files(
        "loadgen/**/*.py",
        "loadgen/**/*.[ch]",
        "loadgen/**/*.yaml",
        "tests/**/*.py",
        "e2e/**/*.*",
        "scripts/*",
        ".ci/run",
    )
    sources = {*code, *files("*.md", "docs/**/*.md", "Makefile")} - {Path(__file__).resolve()}
    yield from (f"{rel(path)}: {hit[0]}" for path in sources for hit in re.finditer(banned, text(path)))


def impure_core() -> Iterator[str]:
    state = r"\brandom\.(?!Random\b|Generator\b|default_rng\(\w)\w+\(|\bdatetime\.now|(?<![\w.])open\("
    for path in files("loadgen/core/**/*.py"):
        roots = {re.sub(r"^(loadgen\.core|(?!loadgen)\w+).*", r"\1", name) for name in imports(path)}
        yield from (f"{rel(path)} imports {name}" for name in roots - CORE_MAY_IMPORT)
        yield from (f"{rel(path)} uses {found[0]}" for found in re.finditer(state, text(path)))


def undeclared_imports() -> Iterator[str]:
    """The package imports what pyproject.toml pins; the CNI plugin, one file run by a kubelet, not even that."""
    pins = re.findall(r'^  "([\w-]+)==', text(ROOT / "pyproject.toml").partition("[project.opt")[0], re.M)
    pinned = {"loadgen", "dns", "yaml"} | {pin.replace("-", "_") for pin in pins}  # dnspython, pyyaml
    locust = pinned | {"flask", "gevent", "locust"}  # the image's, for these files alone
    own = {"cni": set(), **dict.fromkeys(("locustfile", "locuststats", "lookupfile"), locust)}
    for path in files("loadgen/**/*.py"):
        foreign = {name.split(".")[0] for name in imports(path)} - sys.stdlib_module_names
        yield from (f"{rel(path)} imports {name}" for name in foreign - own.get(path.stem, pinned))


def swallowed_exceptions() -> Iterator[str]:
    paths = [path for path in files("loadgen/**/*.py") if rel(path) not in CATCHES_ALL]
    for path, handler in [(p, n) for p in paths for n in nodes(p) if isinstance(n, ast.ExceptHandler)]:
        wide = not handler.type or re.search(r"\b(Base)?Exception\b", ast.unparse(handler.type))
        if wide and not any(isinstance(n, ast.Raise) for n in ast.walk(handler)):
            yield f"{rel(path)}:{handler.lineno}: catches everything and does not raise"


def unmentioned(by: list[Path]) -> set[str]:
    """Modules that no other file of `by` imports or names (`python -m`, a path)."""
    said = {path: text(path) + "".join(f'"{name}"' for name in imports(path)) for path in by if path.suffix == ".py"}
    manifests = "".join(
        f'"{word}"' for path in files("manifests/*.yaml") for word in re.findall(r"loadgen\.[\w.]+", text(path))
    )
    said[ROOT / "manifests"] = manifests
    modules = [path for path in files("loadgen/**/*.py") if path.stem not in {"__init__", "__main__"}]
    names = {path: (f'"{rel(path)[:-3].replace("/", ".")}"', f'"{path.name}"') for path in modules}
    return {rel(m) for m in modules if not any(name in said[p] for p in said if p != m for name in names[m])}


def dead_modules() -> Iterator[str]:
    yield from unmentioned(files("loadgen/**/*.py"))


def untested() -> Iterator[str]:
    mirrors = {rel(path).replace("/test_", "/").replace("tests/", "loadgen/") for path in files("tests/**/test_*.py")}
    tested = unmentioned(files("tests/**/*.py", "e2e/**/*.py")) - mirrors
    yield from {name for name in tested if not re.match(IN_RUNS, name)}


def cannot_fail() -> Iterator[str]:
    tests = [(rel(p), f) for p in files("tests/**/test_*.py") for f in functions(p) if f.name.startswith("test")]
    silent = [(p, f.name) for p, f in tests if not re.search(r"\bassert|\braises\(", ast.unparse(f))]
    yield from (f"{path}: {name} asserts nothing" for path, name in silent)
    yield from {rel(path) for path in files("tests/**/test_*.py")} - {path for path, _ in tests}


def sleeping_or_skipping_tests() -> Iterator[str]:
    evasion = r"[\w.]*(\bsleep\((?!0\))|skip|xfail)"
    calls = [(rel(path), n) for path in files("tests/**/*.py") for n in nodes(path) if isinstance(n, ast.Call)]
    yield from {path for path, call in calls if re.match(evasion, ast.unparse(call))} ^ SKIP_OR_SLEEP


RULES = [long_functions, long_files, no_docstring, leftovers, impure_core, undeclared_imports,
         swallowed_exceptions, dead_modules, untested, cannot_fail, sleeping_or_skipping_tests]  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_tidy(rule: Callable[[], Iterator[str]]) -> None:
    assert not (found := sorted(rule())), "\n".join(found)
