"""Where the profilers of TensorFlow and JAX put a run: `LOGDIR/plugins/profile/RUN/HOST.xplane.pb`, and viewers' files beside."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..formats.xplane import SUFFIX

#: Folders in which runs may lie, below what people name; Keras' TensorBoard callback has one for training.
_INNER: Final = ("plugins/profile", "train/plugins/profile", "profile", "")
#: What else is written for a host: the same events for a viewer, cut at a million of them.
_OF_VIEWERS: Final = (".trace.json.gz", ".trace.json")


def newest_run(folder: Path) -> Path | None:
    """The folder of the newest run of a profiler's log folder; None if it is none.

    Runs are called after the time of their start, so that the last name is the newest.
    """
    for inner in _INNER:
        try:
            runs = [run for run in sorted((folder / inner).iterdir()) if run.is_dir() and any(run.glob(f"*{SUFFIX}*"))]
        except OSError:
            continue
        if runs:
            return runs[-1]
    return None


def without_copies(files: Sequence[Path]) -> list[Path]:
    """Leave out files for viewers beside which the profile itself is there."""
    hosts = {(path.parent, path.name.partition(SUFFIX)[0]) for path in files if SUFFIX in path.name}
    return [
        path
        for path in files
        if not any(
            path.name.endswith(ending) and (path.parent, path.name.removesuffix(ending)) in hosts
            for ending in _OF_VIEWERS
        )
    ]
