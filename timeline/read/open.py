"""Opening a trace: which files belong to it, and which reader knows them."""

import gc
import glob
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from ..errors import ReaderError, TlkitError, TraceError, TraceNotFoundError, UnknownFormatError, first_line
from ..formats import Format, Progress, kineto, known_formats
from ..formats import tlkit as own_format
from ..model.clocks import align
from ..model.trace import Trace
from ..record.flight import why_of
from . import cache
from .families import family_of, is_url, visible_files
from .json_events import args_of, iterate_events
from .merging import with_profile
from .nsys_reports import SUFFIX as NSYS_SUFFIX
from .nsys_reports import as_sqlite
from .profile_folders import newest_run, without_copies
from .remote import fetch
from .source import Source

#: A file of nothing else has just been begun.
_NOTHING: Final = b" \t\r\n[\0"
_FIRST_LINES_NBYTES: Final = 2048

Elsewhere = Callable[[int], bool]
"""See `open_trace`."""


def open_trace(
    paths: str | Path | Sequence[str | Path],
    *,
    progress: Progress = lambda _done, _total: None,
    use_cache: bool = True,
    siblings: bool = True,
    elsewhere: Elsewhere = lambda _nbytes: False,
) -> Trace:
    """Read a trace.

    Args:
        paths: a file (the shards of the other ranks beside it are found), a folder, a pattern, a URL, or several of these.
        progress: called with the bytes read and the bytes in all.
        siblings: whether naming one shard of ours means those of the other ranks, too.
        use_cache: whether a large trace is kept as Arrow files when it was read, and taken from there the next time (`cache.py`).
        elsewhere: called with the size of files that would be kept and are not yet; it may have another process read and keep
            them, and returns whether that has happened.

    Raises:
        TraceNotFoundError: nothing is there.
        UnknownFormatError: no reader knows the content.
        TraceError: it cannot be read, or there is nothing in it.
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    files, complete_family = _expand(given)
    complete_family = complete_family and siblings
    known: dict[str, list[Source]] = {}
    formats: dict[str, Format] = {}
    refused: list[Path] = []
    empty: list[Path] = []
    for path in files:
        source = Source(path)
        reader = _find_format(source)
        if reader is None:
            (refused if source.head().strip(_NOTHING) else empty).append(path)
        else:
            formats[reader.NAME] = reader
            known.setdefault(reader.NAME, []).append(source)
    if not known and not refused:
        raise UnknownFormatError(
            f"{empty[0]} is empty: nothing has been recorded yet; a running job will write to it soon"
        )
    if not known:
        raise UnknownFormatError(
            f"{refused[0]}: not a trace that any reader recognises; it should be a timeline of this toolkit or of Horovod, "
            f"a trace of "
            "the PyTorch profiler or a dump of torch's Flight Recorder, an XPlane of TensorFlow's or JAX's profiler, "
            "an sqlite export "
            "of Nsight Systems, or other Chrome trace JSON; plain, gzip or zstd"
        )
    open_sources = partial(_read, progress=progress, use_cache=use_cache, elsewhere=elsewhere)
    if set(known) == {own_format.NAME, kineto.NAME}:
        own, of_profiler = (
            _open_one_kind(formats[name], known[name], open_sources, complete_family=complete_family)
            for name in (own_format.NAME, kineto.NAME)
        )
        return with_profile(own, of_profiler, [kineto.written_beside(source) for source in known[kineto.NAME]])
    if len(known) > 1:
        raise TraceError(f"these files are of several formats ({', '.join(sorted(known))}): open one kind at a time")
    ((name, sources),) = known.items()
    return _open_one_kind(formats[name], sources, open_sources, complete_family=complete_family)


def _open_one_kind(
    reader: Format,
    sources: list[Source],
    open_sources: Callable[[Format, list[Source]], Trace],
    *,
    complete_family: bool,
) -> Trace:
    notes: list[str] = []
    if reader.NAME == own_format.NAME:
        if complete_family:
            sources = _with_siblings(sources)
        sources, notes = _of_one_run(sources)
    trace = open_sources(reader, sources)
    if why := why_of(sources[0].path.parent):
        notes.append(f"set aside by the flight recorder: {why}")
    return replace(trace, meta=replace(trace.meta, notes=(*trace.meta.notes, *notes)))


def files_of(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files that `open_trace` would read, with the shards of all ranks.

    Raises:
        TraceNotFoundError: nothing is there.
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    files, complete_family = _expand(given)
    sources = [Source(path) for path in files]
    if complete_family and all(own_format.sniff(source.head()) for source in sources):
        sources = _with_siblings(sources)
    return [source.path for source in sources]


def _read(
    reader: Format, sources: Sequence[Source], progress: Progress, *, use_cache: bool, elsewhere: Elsewhere
) -> Trace:
    key = cache.key_of(sources, reader.NAME) if use_cache else None
    if key is not None:
        kept = cache.load(key, sources)
        if kept is None and elsewhere(sum(source.path.stat().st_size for source in sources)):
            kept = cache.load(key, sources)
        if kept is not None:
            return kept
    with _no_garbage_collection():
        trace = align(_read_files(reader, sources, progress))
    return trace if key is None else cache.store(key, trace, sources)


def _read_files(reader: Format, sources: Sequence[Source], progress: Progress) -> Trace:
    try:
        return reader.read(sources, progress)
    except TlkitError:
        raise
    except OSError as error:
        raise TraceError(f"{sources[0].path}: cannot read it: {error.strerror or first_line(error)}") from error
    except MemoryError as error:
        raise TraceError(f"{sources[0].path}: there is not enough memory to read it") from error
    except Exception as error:  # a reader of another package, or a file damaged in a way that nobody has thought of
        raise ReaderError(
            f"{sources[0].path}: the reader of `{reader.NAME}` failed on it{_place_of(error)} ({first_line(error)}); "
            f"the file is "
            "damaged, or the reader has a fault"
        ) from error


def _place_of(error: BaseException) -> str:
    """Module and line where an error was raised, for whoever has to find the fault."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _expand(given: Sequence[str | Path]) -> tuple[list[Path], bool]:
    """Files that are meant, and whether their siblings are, too (they are for plain file names)."""
    files: list[Path] = []
    complete_family = True
    for item in given:
        if is_url(str(item)):
            complete_family = False
            files += fetch(str(item))
            continue
        path = Path(item)
        if path.is_dir():
            complete_family = False
            files += _known_in(path)
        elif path.exists():
            files.append(path)
        elif glob.has_magic(str(item)):
            matched = sorted(Path(name) for name in glob.glob(str(item), recursive=True))  # noqa: PTH207  any pattern
            if not matched:
                raise TraceNotFoundError(f"{item}: no file matches")
            complete_family = False
            files += matched
        else:
            raise TraceNotFoundError(f"{item}: no such file; did the run write its timeline elsewhere?")
    return list(dict.fromkeys(as_sqlite(files))), complete_family


def _known_in(folder: Path) -> list[Path]:
    """The traces in a folder, or those of the newest run in a log folder of a profiler.

    Raises:
        TraceNotFoundError: there are none.
    """
    inside = without_copies(_files_in(folder))
    reports = {child.with_suffix(".sqlite") for child in inside if child.suffix == NSYS_SUFFIX}
    known = [
        child
        for child in inside
        if child not in reports and (child.suffix == NSYS_SUFFIX or _find_format(Source(child)) is not None)
    ]
    if known:
        return known
    run = newest_run(folder)
    if run is None:
        raise TraceNotFoundError(_without_traces(folder, inside))
    return _known_in(run)


def _files_in(folder: Path) -> list[Path]:
    try:
        return visible_files(folder)
    except OSError as error:
        raise TraceError(f"cannot read the folder {folder}: {error.strerror}") from error


def _without_traces(folder: Path, files: Sequence[Path]) -> str:
    """What to say of a folder in which no file is a trace."""
    try:
        folders = [
            child.name for child in sorted(folder.iterdir()) if child.is_dir() and not child.name.startswith(".")
        ]
    except OSError:
        folders = []
    among = f"none of its {len(files)} files is one" if files else "it has no files"
    inner = f"; its subfolders are not searched: {', '.join(folders[:4])}" if folders else ""
    return f"{folder}: no trace in this folder, {among}{inner}"


def _find_format(source: Source) -> Format | None:
    head = source.head()
    for reader in known_formats():
        try:
            if reader.sniff(head):
                return reader
        except Exception as error:  # of another package: ours look for bytes, which cannot fail
            raise ReaderError(
                f"{source.path}: the reader of `{reader.NAME}` cannot open it: {first_line(error)}"
            ) from error
    return None


def _with_siblings(sources: Sequence[Source]) -> list[Source]:
    """The shards of all ranks, given some of them."""
    found = [source.path for source in sources]
    for family in {family_of(source.path) for source in sources}:
        found += [child for child in family.files() if own_format.sniff(Source(child).head())]
    return [Source(path) for path in dict.fromkeys(found)]


def _of_one_run(sources: Sequence[Source]) -> tuple[list[Source], list[str]]:
    """Leave out shards of another run: leftovers, say, of an earlier one with more ranks."""
    described = [(source, *_run_and_rank(source)) for source in sources]
    run_id = described[0][1]
    mine = {shard: source for source, run, shard in reversed(described) if run == run_id}
    notes = []
    others = sorted(source.path.name for source, run, _ in described if run != run_id)
    if others:
        notes.append(f"ignored, because they belong to another run: {', '.join(others[:8])}")
    doubled = [source.path.name for source, run, shard in described if run == run_id and mine[shard] is not source]
    if doubled:
        notes.append(f"ignored, because another file has the same rank: {', '.join(doubled[:8])}")
    return [mine[shard] for shard in sorted(mine)], notes


def _run_and_rank(source: Source) -> tuple[str, tuple[int, int]]:
    """The run, and which rank's shard and which part of it."""
    # It is in the first line; to read on takes milliseconds a file, of which there are thousands, and so does a line that is cut.
    head = source.head()
    for lines in (head[: head.rfind(b"\n", 0, _FIRST_LINES_NBYTES) + 1], head):
        for events in iterate_events(lines, source.dropped.copy()):
            for event in events:
                if event.name == "tlkit_shard":
                    args = args_of(event)
                    rank, part = args.get("rank"), args.get("part")
                    shard = rank if isinstance(rank, int) else 0, part if isinstance(part, int) else 1
                    return str(args.get("run_id", "")), shard
    raise TraceError(f"{source.path}: its first line is damaged, so its rank is unknown")


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Millions of small objects without cycles: looking for cycles among them doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
