"""A trace as a file for other programs: Chrome JSON for Perfetto, Parquet for tables, Horovod's own form for old parsers."""

import gzip
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import TraceError
from ..model.trace import TABLES, Trace
from ..read.packed_tables import KEY, VERSION, pack
from ..record.horovod_format import HorovodFormat
from ..record.shard_format import ShardClock, ShardHeader, TensorLife
from ..scanning import decode_args, plain
from ..vocabulary import LANE_TIDS, MEMCPY_IN, MEMCPY_OUT, Category, LaneKind
from .nvtxt import write_nvtxt
from .perfetto_file import SUFFIXES, write_perfetto

#: Spans that become text at a time.
_AT_ONCE: Final = 50_000
#: Our lanes come first on the screen, in this order.
_FIRST_LANES: Final = (LaneKind.STEPS, LaneKind.COMPUTE, LaneKind.DATA, LaneKind.COMMUNICATION)

Progress = Callable[[int, int], None]

_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode

FORMATS: Final = ("chrome", "parquet", "perfetto", "horovod", "nsight")


def format_of(path: Path) -> str:
    """The format that a file name asks for.

    Raises:
        TraceError: its ending says nothing.
    """
    name = path.name.removesuffix(".gz")
    if name.endswith(".json"):
        return "chrome"
    if name.endswith(SUFFIXES):
        return "perfetto"
    if name.endswith(".nvtxt"):
        return "nsight"
    if name.endswith(".parquet") or not Path(name).suffix:
        return "parquet"
    raise TraceError(
        f"{path}: its suffix does not determine the format; use .json, .json.gz, .pftrace, .parquet or .nvtxt, or --to"
    )


def write(trace: Trace, path: Path, form: str, progress: Progress = lambda _done, _total: None) -> None:
    """Write a trace.

    Args:
        form: one of FORMATS.

    Raises:
        TraceError: the file cannot be written, or the trace cannot be put into that form.
    """
    try:
        if form == "parquet":
            _write_parquet(trace, path)
            return
        if form == "perfetto":
            with _binary_file(path) as packed:
                write_perfetto(trace, packed, progress)
            return
        with _text_file(path) as file:
            if form == "horovod":
                _write_horovod(trace, file)
            elif form == "nsight":
                write_nvtxt(trace, file)
            else:
                _write_chrome(trace, file, progress)
    except OSError as error:
        raise TraceError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def _text_file(path: Path) -> Iterator[TextIO]:
    """As `_binary_file`, for text."""
    with _binary_file(path) as file, io.TextIOWrapper(file, encoding="utf-8", write_through=False) as text:
        yield text


@contextmanager
def _binary_file(path: Path) -> Iterator[BinaryIO]:
    """A file that is in place only when it is whole; packed if its name says so."""
    scratch = path.with_name(f".{path.name}.writing")
    try:
        with gzip.open(scratch, "wb", compresslevel=5) if path.suffix == ".gz" else scratch.open("wb") as file:
            yield cast("BinaryIO", file)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


# Chrome JSON.


def _write_chrome(trace: Trace, file: TextIO, progress: Progress) -> None:
    """One process a rank, one thread a lane, in the order of the screen; times in µs with three decimals."""
    meta = trace.meta
    described = {
        "writer": "tlkit",
        KEY: VERSION,
        "format": meta.format,
        "ranks": list(meta.ranks),
        "size": meta.size,
        "clock": {"method": meta.clock.method, "uncertainty_ns": meta.clock.uncertainty_ns},
        "epoch_unix_ns": meta.epoch_unix_ns,
        "dropped": dict(meta.dropped),
        "notes": list(meta.notes),
    }
    file.write('{"displayTimeUnit":"ms","otherData":' + json.dumps(described) + ',\n"traceEvents":[\n')
    tids, lines = _lane_ids(trace)
    file.write(",\n".join(lines))
    spans = trace.spans
    total = len(spans)
    names = [json.dumps(text) for text in spans["name"].cat.categories]
    categories = [json.dumps(text) for text in spans["category"].cat.categories]
    columns = (
        spans["rank"].to_numpy(),
        tids,
        spans["name"].cat.codes.to_numpy(),
        spans["category"].cat.codes.to_numpy(),
        spans["start_ns"].to_numpy(),
        spans["dur_ns"].to_numpy(),
        spans["args_row"].to_numpy(),
    )
    # Viewers nest by order where times are equal: what encloses comes first.
    order = np.lexsort((-columns[5], columns[4], columns[1], columns[0]))
    for first in range(0, total, _AT_ONCE):
        rows = order[first : first + _AT_ONCE]
        parts = []
        for rank, tid, name, category, start, duration, args in zip(
            *(column[rows].tolist() for column in columns), strict=True
        ):
            text = trace.raw_args[args] if args >= 0 else b""
            tail = f',"args":{_one_line(text)}' if text[:1] == b"{" else ""
            parts.append(
                f'{{"ph":"X","name":{names[name]},"cat":{categories[category]},"pid":{rank},"tid":{tid},'
                f'"ts":{_us(start)},"dur":{_us(duration)}{tail}}}'
            )
        file.write(",\n" + ",\n".join(parts))
        progress(min(first + _AT_ONCE, total), total)
    counters = trace.counters
    counter_names = counters["name"].astype("str").tolist()
    for rank, name, at, value in zip(
        counters["rank"].tolist(), counter_names, counters["ts_ns"].tolist(), counters["value"].tolist(), strict=True
    ):
        if np.isfinite(value):
            file.write(
                f',\n{{"ph":"C","name":{json.dumps(name)},"pid":{rank},"tid":0,"ts":{_us(at)},"args":{{"value":{value!r}}}}}'
            )
    # For our own reader; viewers pass over it.
    file.writelines(f",\n{line}" for line in pack(trace, order))
    file.write("\n]}\n")


def _us(time_ns: int) -> str:
    """Nanoseconds as decimal microseconds, exactly."""
    sign, time_ns = ("-", -time_ns) if time_ns < 0 else ("", time_ns)
    return f"{sign}{time_ns // 1000}.{time_ns % 1000:03d}"


def _one_line(args: bytes) -> str:
    """Args as they are, or repaired if they are no JSON."""
    try:
        _check_json(args)
    except (msgspec.MsgspecError, RecursionError):
        repaired = plain(decode_args(args))
        return json.dumps(repaired, separators=(",", ":"), default=str)
    return args.decode("utf-8", "replace")


def _lane_ids(trace: Trace) -> tuple[np.ndarray, list[str]]:
    """A thread number for the lane of each span, and the lines that name them."""
    spans = trace.spans
    lanes = spans.drop_duplicates(["rank", "lane_kind", "lane"])[["rank", "lane_kind", "lane"]].astype("str")
    order = {str(kind): number for number, kind in enumerate(_FIRST_LANES)}
    chosen = sorted(
        lanes.itertuples(index=False, name=None), key=lambda row: (int(row[0]), order.get(row[1], 99), row[1], row[2])
    )
    number_of: dict[tuple[str, str, str], int] = {}
    lines = []
    for rank in trace.meta.ranks:
        host = trace.meta.hosts.get(rank, "")
        name = f"rank {rank}" + (f" ({host})" if host else "")
        lines += [
            f'{{"ph":"M","name":"process_name","pid":{rank},"args":{{"name":{json.dumps(name)}}}}}',
            f'{{"ph":"M","name":"process_sort_index","pid":{rank},"args":{{"sort_index":{rank}}}}}',
        ]
    for rank_text, kind, lane in chosen:
        number = number_of[rank_text, kind, lane] = len(number_of) + 1
        label = json.dumps(lane)
        lines += [
            f'{{"ph":"M","name":"thread_name","pid":{rank_text},"tid":{number},"args":{{"name":{label}}}}}',
            f'{{"ph":"M","name":"thread_sort_index","pid":{rank_text},"tid":{number},"args":{{"sort_index":{number}}}}}',
        ]
    keys = spans["rank"].to_numpy().astype(np.int64) << 40
    keys |= spans["lane_kind"].cat.codes.to_numpy().astype(np.int64) << 32
    keys |= spans["lane"].cat.codes.to_numpy().astype(np.int64)
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    of_key = np.zeros(len(unique), np.int64)
    for position, row in enumerate(first.tolist()):
        span = spans.iloc[row]
        of_key[position] = number_of[str(span["rank"]), str(span["lane_kind"]), str(span["lane"])]
    return of_key[inverse], lines


# Parquet.


def _write_parquet(trace: Trace, folder: Path) -> None:
    """A folder with a file a table, texts as texts, and what is known about the trace."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TABLES:
        table = getattr(trace, name)
        columns: dict[str, Any] = {}
        for column in table.columns:
            values = table[column]
            if hasattr(values, "cat"):
                texts = pa.array([str(text) for text in values.cat.categories], pa.string())
                columns[column] = pa.DictionaryArray.from_arrays(
                    pa.array(values.cat.codes.to_numpy(), pa.int32()), texts
                )
            else:
                columns[column] = pa.array(values.to_numpy())
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", compression="zstd")
    meta = trace.meta
    described = {
        "format": meta.format,
        "files": list(meta.files),
        "ranks": list(meta.ranks),
        "size": meta.size,
        "clock": {"method": meta.clock.method, "uncertainty_ns": meta.clock.uncertainty_ns},
        "dropped": dict(meta.dropped),
        "notes": list(meta.notes),
        "epoch_unix_ns": meta.epoch_unix_ns,
    }
    (folder / "trace.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


# Horovod's own form.


def _write_horovod(trace: Trace, file: TextIO) -> None:
    """Rank 0's tensors and collectives, as Horovod would have written them.

    Raises:
        TraceError: the trace has no tensors.
    """
    rank = trace.meta.ranks[0]
    tensors = trace.tensors[trace.tensors["rank"] == rank]
    if not len(tensors):
        raise TraceError("this trace does not contain which tensors were exchanged, which a Horovod timeline needs")
    form = HorovodFormat(
        ShardHeader(
            run_id="",
            rank=rank,
            size=trace.meta.size,
            local_rank=0,
            host="",
            boot_id="",
            process_id=0,
            device="",
            clock=ShardClock(origin_ns=0, origin_unix_ns=trace.meta.epoch_unix_ns),
        )
    )
    arrivals = {
        key: rows.sort_values("rank")["arrival_ns"].tolist()
        for key, rows in trace.arrivals.groupby(["process_set", "seq"], observed=True)
    }
    of_rank = trace.collectives[trace.collectives["rank"] == rank]
    keys = zip(of_rank["process_set"].tolist(), of_rank["seq"].tolist(), strict=True)
    dtypes = dict(zip(keys, of_rank["dtype"].astype("str").tolist(), strict=True))
    spans = trace.spans[(trace.spans["rank"] == rank) & (trace.spans["lane_kind"] == str(LaneKind.COMMUNICATION))]
    inner = spans[
        spans["name"].isin([MEMCPY_IN, MEMCPY_OUT])
        | ((spans["category"] == str(Category.COLLECTIVE)) & spans["name"].astype("str").str.contains("_"))
    ].sort_values("start_ns")
    starts = inner["start_ns"].to_numpy()
    ends = starts + inner["dur_ns"].to_numpy()
    names = inner["name"].astype("str").tolist()
    communication = LANE_TIDS[LaneKind.COMMUNICATION]
    lines = form.head()
    grouped = tensors[tensors["seq"] >= 0].groupby(["process_set", "seq"], observed=True, sort=False)
    batches: list[tuple[Any, Any]] = sorted(grouped, key=lambda item: item[1]["start_ns"].to_numpy().min())
    for key, rows in batches:
        start, end = int(rows["start_ns"].min()), int(rows["end_ns"].max())
        for row in range(*np.searchsorted(starts, [start, end]).tolist()):
            lines.append(form.span(names[row], "", communication, int(starts[row]), int(ends[row]), None))
        dtype = dtypes.get(key, "")
        kind = str(rows["kind"].iloc[0])
        told = [at / 1e3 for at in arrivals.get(key, [])]
        lines.append(form.span(kind.upper(), "", communication, start, end, {"arrivals": told}))
        lives = [
            TensorLife(number, str(row.name), kind, int(row.nbytes), dtype, (), int(row.submitted_ns), False)  # noqa: FBT003
            for number, row in enumerate(rows[["name", "nbytes", "submitted_ns"]].itertuples(index=False, name="Row"))
        ]
        lines.append(form.lives(lives, 0, 0, (int(rows["negotiated_ns"].max()), start, end)))
    file.write("[\n" + "".join(lines).removesuffix(",\n") + "\n]\n")
