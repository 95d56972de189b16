"""The import map: what a wheel holds, and that no bare package name leaks."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("cli", "engine", "kernels", "store", "tuner", "workers")
DATA_SUFFIXES = (".cpp", ".h", ".jsonl", ".json", ".mako", ".ini", ".typed", ".sql", ".yaml")


def settings() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def found_packages() -> set[str]:
    inits = (path for name in FOLDERS for path in (ROOT / name).rglob("__init__.py"))
    return {"draftsmith." + ".".join(path.parent.relative_to(ROOT).parts) for path in inits}


def imported_modules(path: Path) -> set[str]:
    """Top-level names that a module imports, those inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.split(".")[0])
    return found


def normalised(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def shipped_files() -> set[str]:
    """Files that a wheel must hold, relative to the checkout."""
    files = (path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.is_file())
    wanted = {path for path in files if path.suffix in (".py", *DATA_SUFFIXES)}
    return {path.relative_to(ROOT).as_posix() for path in wanted if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names inside a wheel. Built from a copy: setuptools leaves build/ behind in its source."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in (*shipped_files(), "pyproject.toml", "README.md", "LICENSE"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-P", "-m", "build", "--wheel", "--no-isolation"]
    done = subprocess.run(
        [*command, "--outdir", str(out), str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = out.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_packages_list_names_every_package() -> None:
    assert set(settings()["packages"]) == found_packages()


def test_folders_with_code_are_packages() -> None:
    code = {path.parent for name in FOLDERS for path in (ROOT / name).rglob("*.py")}
    missing = {str(folder.relative_to(ROOT)) for folder in code} - {
        str(path.parent.relative_to(ROOT)) for path in ROOT.rglob("__init__.py")
    }
    assert missing == set()


def test_wheel_holds_every_module_and_data_file(wheel_files: set[str]) -> None:
    assert {f"draftsmith/{name}" for name in shipped_files()} - wheel_files == set()


def test_wheel_has_one_top_level_package_and_no_root_init(wheel_files: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_files}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"draftsmith"}
    assert "draftsmith/__init__.py" not in wheel_files


@pytest.mark.parametrize("name", FOLDERS)
def test_bare_name_is_not_importable_from_the_checkout(name: str) -> None:
    spec = importlib.util.find_spec(name)  # another distribution may own a name, such as `kernels`
    assert spec is None or not str(spec.origin).startswith(str(ROOT))


@pytest.mark.parametrize("name", FOLDERS)
def test_typing_link_points_at_its_folder(name: str) -> None:
    link = ROOT / ".typing" / "draftsmith" / name
    assert link.is_symlink() and not os.path.isabs(os.readlink(link))
    assert link.resolve() == ROOT / name


def test_console_script_answers() -> None:
    script = Path(sys.executable).with_name("draftsmith")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("draftsmith ")


def test_what_the_code_imports_is_declared_and_pinned() -> None:
    """A dependency of a dependency may leave with its next version."""
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    declared = {normalised(re.split(r"[\[<>=!~; ]", entry)[0]) for entry in requirements}
    owners = metadata.packages_distributions()
    foreign_python = "workers/peers/engines/"  # runs where the other engine is installed
    modules = set().union(
        *(
            imported_modules(ROOT / name)
            for name in shipped_files()
            if name.endswith(".py") and not name.startswith(foreign_python)
        )
    )
    foreign = modules - set(sys.stdlib_module_names) - {"draftsmith"}
    wanted = {normalised(owners[module][0]) for module in foreign if module in owners}
    assert wanted - declared == set()
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normalised(line.split("==")[0]) for line in pins if "==" in line}
    assert declared - pinned == set()


def test_torch_is_pinned_without_a_build_tag() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all("==" in line and "+" not in line for line in pins)
    assert sum(line.startswith("torch==") for line in pins) == 1
