"""The structure of the code: which folder may import which, and what is installed."""

import ast
import graphlib
import os
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = ("timeline", "runtime", "collector", "dashboard")
#: What each folder may import of the others.
BELOW = {"timeline": set(), "runtime": {"timeline"}, "collector": {"timeline"}, "dashboard": {"timeline", "collector"}}
#: Packages that a layer must do without.
FOREIGN = {
    "timeline": {"torch", "dash", "plotly"},
    "collector": {"torch", "dash"},
    "runtime": {"dash", "plotly", "pandas"},
}

MODULES = sorted(path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py"))


def name_of(folder: Path) -> str:
    """The package that a folder of the repository is installed as."""
    parts = folder.relative_to(REPOSITORY).parts
    return ".".join(["tlkit", *(parts[1:] if parts[:2] == ("runtime", "integrations") else parts)])


def imports_of(path: Path) -> set[str]:
    """Absolute names of what a module imports."""
    package = name_of(path.parent).split(".")
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            found |= {".".join(module), *(".".join([*module, alias.name]) for alias in node.names)}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_imports_point_down_only(path: Path) -> None:
    """timeline <- runtime, timeline <- collector <- dashboard; runtime and collector do not know each other."""
    folder = path.relative_to(REPOSITORY).parts[0]
    imported = imports_of(path)
    others = {name.split(".")[1] for name in imported if name.startswith("tlkit.") and name.count(".")} & set(FOLDERS)

    assert others - {folder} <= BELOW[folder]
    assert not {name.split(".")[0] for name in imported} & FOREIGN.get(folder, set())


@pytest.mark.parametrize("path", [path for path in MODULES if "core" in path.parts], ids=lambda path: path.stem)
def test_the_core_of_the_runtime_knows_no_framework(path: Path) -> None:
    """Tensors come in through a binding; of the runtime the core imports itself alone."""
    imported = imports_of(path)

    assert not {name.split(".")[0] for name in imported} & {"torch", "tensorflow", "keras", "jax"}
    assert not [
        name for name in imported if name.startswith("tlkit.runtime.") and not name.startswith("tlkit.runtime.core")
    ]


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports at the top of modules have no cycles."""
    names = {}
    for path in MODULES:
        installed = name_of(path.parent)
        names[installed if path.name == "__init__.py" else f"{installed}.{path.stem}"] = path
    graph = {}
    for name, path in names.items():
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        found = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.level:
                base = [*package[: len(package) - node.level + 1], *(node.module.split(".") if node.module else [])]
                found |= {".".join([*base, alias.name]) for alias in node.names}
                found |= {".".join(base)} - {".".join(package)}
        graph[name] = (found & set(names)) - {name}
    graphlib.TopologicalSorter(graph).prepare()


def test_modules_fit_in_a_head() -> None:
    """At most 400 lines; 40 for what only imports."""
    excused = {"runtime/core/control/service.py": 540}
    lengths = {str(path.relative_to(REPOSITORY)): len(path.read_text().splitlines()) for path in MODULES}

    assert {name: length for name, length in lengths.items() if length > excused.get(name, 400)} == {}


def test_every_package_is_installed() -> None:
    """The list in pyproject.toml is the tree's."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    in_tree = {name_of(path.parent) for folder in FOLDERS for path in (REPOSITORY / folder).rglob("__init__.py")}

    assert set(project["tool"]["setuptools"]["packages"]) == in_tree | {"tlkit"}


def test_a_training_rank_loads_nothing_that_only_reading_needs() -> None:
    """Neither the launcher nor the runtime imports pandas; the launcher does without torch as well."""
    code = "import sys, {module}; print([name for name in ('torch', 'pandas') if name in sys.modules])"
    loaded = {
        module: subprocess.run(
            [sys.executable, "-c", code.format(module=module)],
            env=dict(os.environ) | {"PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for module in ("tlkit.runtime.launch.cli", "tlkit.runtime.core.engine", "tlkit.runtime.torch")
    }

    assert loaded == {
        "tlkit.runtime.launch.cli": "[]",
        "tlkit.runtime.core.engine": "[]",
        "tlkit.runtime.torch": "['torch']",
    }


def test_no_script_hides_a_package() -> None:
    """A script's folder comes first where modules are looked for: one named like a package would be imported in its place."""
    folders = ("benchmarks", "benchmarks/diagnosis", "samples", "packaging")
    scripts = {path.stem for folder in folders for path in (REPOSITORY / folder).glob("*.py")}
    installed = {name.split(".")[0] for name in packages_distributions()}

    assert scripts & (installed | sys.stdlib_module_names) == set()
