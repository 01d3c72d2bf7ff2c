"""What a wheel holds, and what `import horovod.torch` finds."""

import csv
import email
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources."""
    return build(tmp_path_factory.mktemp("wheel"), {})


def build(folder: Path, environment: dict[str, str], function: str = "build_wheel") -> Path:
    """Build a wheel in `folder`, from `folder`/copy."""
    listed = ["git", "-C", str(REPOSITORY), "ls-files", "-z"]
    names = subprocess.run(listed, capture_output=True, text=True, check=False).stdout.split("\0")
    if len(names) < 2:
        pytest.skip("not a git checkout, so what belongs to the sources is unknown")
    for name in filter(None, names):
        source, target = REPOSITORY / name, folder / "copy" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.is_file():
            target.write_bytes(source.read_bytes())
    script = f"import sys; sys.path.insert(0, 'packaging'); import tlkit_build; tlkit_build.{function}({str(folder)!r})"
    settings = {**os.environ, **environment}
    subprocess.run([sys.executable, "-c", script], cwd=folder / "copy", check=True, capture_output=True, env=settings)
    (built,) = [path for path in folder.iterdir() if path.suffix in {".whl", ".gz"}]
    return built


def test_a_wheel_puts_nothing_generic_into_the_import_space(wheel: Path) -> None:
    """One package, its metadata and the hook; all sub-packages and the commands are there."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry_points,) = [archive.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    tops = {name.split("/")[0] for name in names}

    assert tops == {"tlkit", "tlkit-0.1.0.dist-info", "tlkit_horovod.pth", "_tlkit_horovod.py"}
    assert {"tlkit/py.typed", "tlkit/runtime/torch/__init__.py", "tlkit/collector/findings/base.py"} <= set(names)
    assert "tl-run = tlkit.runtime.launch.cli:main" in entry_points
    assert "tl-analyze = tlkit.collector.commands.analyze:main" in entry_points


def test_without_a_compiler_the_wheel_is_built_without_what_is_compiled(tmp_path: Path, wheel: Path) -> None:
    """And with one, the scanner, the recorder, the shared memory and what looks at code are there in C."""
    without = build(tmp_path, {"CC": "/bin/false"})
    with zipfile.ZipFile(without) as archive:
        names = set(archive.namelist())
    assert {"tlkit/timeline/scanning/portable.py", "tlkit/timeline/record/queue/portable.py"} <= names
    assert not [name for name in names if name.endswith(".so")]
    if shutil.which("gcc") or shutil.which("cc"):
        with zipfile.ZipFile(wheel) as archive:
            compiled = [name for name in archive.namelist() if name.endswith(".so")]
        assert sorted(name.rpartition("/")[0] for name in compiled) == [
            "tlkit/runtime/instrument/code",
            "tlkit/runtime/torch/data_plane/transports/pair",
            "tlkit/runtime/torch/data_plane/transports/shared_memory",
            "tlkit/timeline/record/queue",
            "tlkit/timeline/scanning",
        ]


def test_every_file_of_a_wheel_is_recorded(wheel: Path) -> None:
    """So that uninstalling removes the hook as well."""
    with zipfile.ZipFile(wheel) as archive:
        (record,) = [archive.read(name).decode() for name in archive.namelist() if name.endswith("RECORD")]
        assert {row[0] for row in csv.reader(io.StringIO(record))} == set(archive.namelist())
        hook = archive.read("tlkit_horovod.pth").decode()

    assert hook.count("\n") == 1
    assert hook.startswith("import ")


def test_type_checkers_see_an_editable_install(tmp_path: Path) -> None:
    """By a line that names a folder with nothing else in it, in a wheel that lists what it holds."""
    wheel = build(tmp_path, {}, "build_editable")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (record,) = [archive.read(name).decode() for name in names if name.endswith("RECORD")]
        folder = Path(archive.read("tlkit_editable.pth").decode().strip())

    assert {row[0] for row in csv.reader(io.StringIO(record))} == names
    assert {name.split("/")[0] for name in names} == {
        "tlkit-0.1.0.dist-info", "tlkit_editable.pth", "tlkit_horovod.pth", "_tlkit_horovod.py",
    }  # fmt: skip
    assert [path.name for path in folder.iterdir()] == ["tlkit"]
    assert {"__init__.py", "py.typed", "runtime", "timeline"} <= {path.name for path in (folder / "tlkit").iterdir()}
    assert (folder / "tlkit" / "runtime" / "launch" / "cli.py").is_file()


def test_functions_that_are_imported_late_have_types(tmp_path: Path) -> None:
    """And names that are not there are errors."""
    mypy = pytest.importorskip("mypy.api", reason="mypy is not installed")
    script = tmp_path / "script.py"
    script.write_text(
        "import tlkit, tlkit.runtime\n"
        "path: int = tlkit.instrument('t.json').path\n"
        "tlkit.trace_handler('t.json', 1)\n"
        "tlkit.runtime.run()\n"
        "tlkit.nonsense\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", mypy.__name__.partition(".")[0], "--no-site-packages", "--ignore-missing-imports",
         "--cache-dir", str(tmp_path / "cache"), str(script)],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [line.rpartition("[")[2].rstrip("]") for line in ended.stdout.splitlines() if "script.py" in line]

    assert found == ["assignment", "call-arg", "call-arg", "attr-defined"], ended.stdout


@pytest.fixture(scope="module")
def site_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel puts beside the package."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        for name in ("tlkit_horovod.pth", "_tlkit_horovod.py"):
            archive.extract(name, folder)
    return folder


def run_python(site_folder: Path, code: str, *paths: Path, **environment: str) -> str:
    """Run code in an interpreter that sees `paths`, torch and the repository, and has started with the hook."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    site_packages = Path(spec.origin).parents[1]
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import site; site.addsitedir({str(site_folder)!r})\n{code}"],
        env={"PYTHONPATH": ":".join(map(str, [*paths, REPOSITORY, site_packages])), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_horovod_is_ours_when_nobody_else_has_it(site_folder: Path) -> None:
    """The same modules under both names, submodules included."""
    printed = run_python(
        site_folder,
        "import horovod, horovod.torch as hvd, tlkit.runtime.torch as own\n"
        "from horovod.torch.mpi_ops import allreduce\n"
        "from horovod.common.exceptions import HorovodInternalError\n"
        "import horovod.torch.optimizer\n"
        "print(hvd is own, allreduce is own.allreduce, HorovodInternalError is own.HorovodInternalError,"
        " horovod.__version__, own.__spec__.name)",
    )

    assert printed == "True True True 0.28.1 tlkit.runtime.torch\n"


def test_an_installed_horovod_is_never_shadowed(tmp_path: Path, site_folder: Path) -> None:
    """Not even for a submodule that it lacks."""
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("real = True\n")
    printed = run_python(site_folder, "import horovod; print(horovod.real, flush=True)\nimport horovod.torch", tmp_path)

    assert printed.startswith("True\n")
    assert "No module named 'horovod.torch'" in printed


def test_the_alias_can_be_turned_off(site_folder: Path) -> None:
    """And what is not there is the usual error."""
    assert "No module named 'horovod'" in run_python(site_folder, "import horovod", TLKIT_HOROVOD_ALIAS="0")


def test_an_interpreter_starts_without_the_package(site_folder: Path) -> None:
    """The hook itself imports nothing but `sys`."""
    with_hook = run_python(site_folder, "import sys; print(*sorted(sys.modules), sep='\\n')").split()
    without = run_python(site_folder.parent, "import sys; print(*sorted(sys.modules), sep='\\n')").split()

    assert set(with_hook) - set(without) == {"_tlkit_horovod"}


def test_a_second_checkout_gets_itself(site_folder: Path, tmp_path: Path) -> None:
    """`import tlkit` and `import horovod` find the package that comes first when they run, not when the interpreter started."""
    (tmp_path / "tlkit").mkdir()
    (tmp_path / "tlkit" / "__init__.py").write_text("")
    (tmp_path / "tlkit" / "runtime").symlink_to(REPOSITORY / "runtime")
    printed = run_python(
        site_folder,
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import tlkit, horovod.common.exceptions as own\n"
        "print(tlkit.__file__); print(own.__file__)",
    ).split()

    assert printed == [
        str(tmp_path / "tlkit" / "__init__.py"),
        str(tmp_path / "tlkit" / "runtime" / "core" / "errors.py"),
    ]


def test_a_hook_that_outlived_the_package_is_no_obstacle(site_folder: Path) -> None:
    """Horovod is not there then, as for everybody else."""
    hidden = "import sys; sys.modules['tlkit'] = None\nimport horovod"

    assert "ModuleNotFoundError: No module named 'horovod'" in run_python(site_folder, hidden)


def links_of(markdown: str) -> list[str]:
    """The targets of all links and images."""
    return re.findall(r"\]\(([^)\s]+)\)", markdown)


def test_links_of_the_readme_exist() -> None:
    """Relative ones, in every checkout."""
    links = [link for link in links_of((REPOSITORY / "README.md").read_text(encoding="utf-8")) if "://" not in link]

    assert len(links) > 20
    assert [link for link in links if not (REPOSITORY / link.partition("#")[0]).exists()] == []


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_links_on_pypi_lead_to_the_repository(kind: str, wheel: Path, tmp_path: Path) -> None:
    """A release names its address: pages, images and the project's URLs, all at the tag."""
    url = "https://example.org/owner/tlkit"
    environment = {"TLKIT_REPOSITORY_URL": url, "TLKIT_REPOSITORY_REF": "v1.2.3"}
    if kind == "wheel":
        # What build_wheel does last.
        built = Path(shutil.copy(wheel, tmp_path))
        script = f"import pathlib, tlkit_build; tlkit_build.rewrite(pathlib.Path({str(built)!r}), {{}})"
        paths = {"PYTHONPATH": str(REPOSITORY / "packaging")}
        subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, **environment, **paths})
        with zipfile.ZipFile(built) as archive:
            names = archive.namelist()
            (text,) = [archive.read(name).decode() for name in names if name.endswith("METADATA")]
            (record,) = [archive.read(name).decode() for name in names if name.endswith("RECORD")]
        assert sorted(row[0] for row in csv.reader(io.StringIO(record))) == sorted(names)
    else:
        built = build(tmp_path, environment, "build_sdist")
        with tarfile.open(built) as archive:
            content = archive.extractfile("tlkit-0.1.0/PKG-INFO")
            assert content is not None
            text = content.read().decode()
    metadata = email.message_from_string(text)
    links = links_of(str(metadata.get_payload()))

    assert f"{url}/blob/v1.2.3/docs/tutorial.md" in links
    assert f"{url}/raw/v1.2.3/docs/images/pages/verdict-desktop-light.png" in links
    assert [link for link in links if "://" not in link] == []
    assert metadata.get_all("Project-URL") == [
        f"Source, {url}",
        f"Documentation, {url}/tree/v1.2.3/docs",
        f"Changelog, {url}/blob/v1.2.3/CHANGELOG.md",
    ]
