"""Reports of Nsight Systems (`.nsys-rep`), which only nsys itself can read: it is asked for an sqlite export.

Also finds the importer that makes a report of what was collected (`.qdstrm`), which some packages of nsys do not find themselves.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..errors import TraceError

SUFFIX: Final = ".nsys-rep"
COLLECTED: Final = ".qdstrm"
_TIMEOUT_S: Final = 3600


def as_sqlite(paths: Sequence[Path]) -> list[Path]:
    """`paths`, with an sqlite export in place of each report: the one beside it if it is newer, else one that is made beside it.

    What nsys collected and did not import is made a report first.

    Raises:
        TraceError: there is no nsys, or it cannot read the report.
    """
    reports = [_imported(path) if path.suffix == COLLECTED else path for path in paths]
    return [_export(path) if path.suffix == SUFFIX else path for path in reports]


def _imported(collected: Path) -> Path:
    """The report of what nsys has collected and not imported."""
    report = import_collected(collected)
    if report is None:
        raise TraceError(
            f"{collected}: nsys has not imported this file, and QdstrmImporter, which converts it to a report, is not installed"
        )
    return report


def _export(report: Path) -> Path:
    target = report.with_suffix(".sqlite")
    if target.is_file() and target.stat().st_mtime >= report.stat().st_mtime:
        return target
    nsys = shutil.which("nsys")
    if nsys is None:
        raise TraceError(
            f"{report}: nsys, which reads its own reports, is not on PATH; where it is: nsys export --type sqlite {report.name}"
        )
    if not _is_writable(report.parent):
        target = Path(tempfile.mkdtemp(prefix="tlkit-nsys-")) / target.name
    command = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(target), str(report)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TraceError(f"{report}: nsys cannot export it: {error}") from error
    if ended.returncode or not target.is_file():
        said = (ended.stderr or ended.stdout).replace("\r", "\n").strip().splitlines()
        raise TraceError(f"{report}: nsys cannot export it: {said[-1][:300] if said else ended.returncode}")
    return target


def _is_writable(folder: Path) -> bool:
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def find_importer() -> str | None:
    """QdstrmImporter: on PATH, or where installations of nsys have it."""
    found = shutil.which("QdstrmImporter")
    if found is not None:
        return found
    nsys = shutil.which("nsys")
    roots = [Path("/usr/lib/nsight-systems"), Path("/opt/nvidia/nsight-systems")]
    if nsys is not None:
        roots.insert(0, Path(nsys).resolve().parent.parent)
    for root in roots:
        for path in (
            sorted(root.glob("**/host-linux*/QdstrmImporter")) if root.is_dir() and root != Path("/usr") else ()
        ):
            return str(path)
    return None


def import_collected(collected: Path) -> Path | None:
    """Make the report of what nsys has collected; None if that cannot be done here."""
    importer = find_importer()
    report = collected.with_suffix(SUFFIX)
    if importer is None:
        return None
    command = [importer, "-i", str(collected), "-o", str(report)]
    try:
        subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    if not report.is_file():
        return None
    collected.unlink(missing_ok=True)
    return report
