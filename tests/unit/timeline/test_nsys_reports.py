"""Reports of Nsight Systems are exported by nsys, here a stand-in that takes its arguments: when it is asked, and what its failures say."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tlkit.timeline.errors import TraceError
from tlkit.timeline.read.nsys_reports import as_sqlite, find_importer, import_collected

Install = Callable[[str, str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a program, the body of a shell script, on an otherwise empty PATH."""
    folder = tmp_path / "nsight" / "target" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.setenv("PATH", str(folder))

    def write(name: str, body: str) -> Path:
        program = folder / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        return program

    return write


#: Says how it was called, and writes what it is asked for: nsys export --type sqlite --force-overwrite true --output OUT REPORT.
EXPORTS = 'echo "$@" >> "$0.calls"; [ "$1 $2 $3" = "export --type sqlite" ] && echo exported > "$7"'


def calls(program: Path) -> list[str]:
    said = Path(f"{program}.calls")
    return said.read_text().splitlines() if said.is_file() else []


def test_a_report_is_exported_once_and_again_when_it_is_newer(tmp_path: Path, install: Install) -> None:
    """Beside it; what is no report stays what it is."""
    nsys = install("nsys", EXPORTS)
    report, other = tmp_path / "rank0.nsys-rep", tmp_path / "t.json"
    report.write_text("report")
    export = tmp_path / "rank0.sqlite"

    assert as_sqlite([report, other]) == [export, other]
    assert as_sqlite([report]) == [export]
    assert calls(nsys) == [f"export --type sqlite --force-overwrite true --output {export} {report}"]
    os.utime(report, ns=(export.stat().st_mtime_ns + 10**9,) * 2)
    assert as_sqlite([report]) == [export]
    assert len(calls(nsys)) == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('echo "Processing..."; printf "10%%\\rUnsupported version\\n" >&2; exit 3', "Unsupported version"),
        ("exit 4", "cannot export it: 4"),
        ("exit 0", "cannot export it: 0"),  # and nothing was written
    ],
)
def test_an_export_that_fails_is_one_line(body: str, said: str, tmp_path: Path, install: Install) -> None:
    """The last one that nsys printed, or its exit status."""
    install("nsys", body)
    report = tmp_path / "rank0.nsys-rep"
    report.write_text("report")

    with pytest.raises(TraceError, match=said) as raised:
        as_sqlite([report])
    assert "\n" not in str(raised.value)


def test_without_nsys_the_command_to_run_elsewhere_is_named(tmp_path: Path, install: Install) -> None:
    """Unless there is an export."""
    assert callable(install)
    report = tmp_path / "rank0.nsys-rep"
    report.write_text("report")
    with pytest.raises(TraceError, match=r"nsys export --type sqlite rank0\.nsys-rep"):
        as_sqlite([report])
    report.with_suffix(".sqlite").write_text("exported elsewhere")
    assert as_sqlite([report]) == [report.with_suffix(".sqlite")]


def test_a_program_that_does_not_start_is_one_line(tmp_path: Path, install: Install) -> None:
    """As nsys of another processor does."""
    install("nsys", "").write_bytes(b"\x7fELF, of another machine")
    report = tmp_path / "rank0.nsys-rep"
    report.write_text("report")

    with pytest.raises(TraceError, match="nsys cannot export it"):
        as_sqlite([report])


def test_what_was_collected_and_not_imported_is_made_a_report_first(tmp_path: Path, install: Install) -> None:
    """By the importer on PATH; the collected file goes when there is a report."""
    nsys = install("nsys", EXPORTS)
    install("QdstrmImporter", 'echo report > "$4"')
    collected = tmp_path / "rank0.qdstrm"
    collected.write_text("collected")

    assert as_sqlite([collected]) == [tmp_path / "rank0.sqlite"]
    assert not collected.exists()
    assert len(calls(nsys)) == 1


def test_the_importer_is_found_in_the_installation_that_nsys_belongs_to(tmp_path: Path, install: Install) -> None:
    """Where packages have it that do not find it themselves; one that makes nothing leaves what was collected."""
    install("nsys", EXPORTS)
    collected = tmp_path / "rank0.qdstrm"
    collected.write_text("collected")
    if find_importer() is None:  # of a real installation
        with pytest.raises(TraceError, match="QdstrmImporter"):
            as_sqlite([collected])
    importer = install("../host-linux-x64/QdstrmImporter", "exit 1")

    assert find_importer() == str(importer.resolve())
    assert import_collected(collected) is None
    assert collected.read_text() == "collected"
