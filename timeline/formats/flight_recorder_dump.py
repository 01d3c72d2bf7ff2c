"""One dump of torch's Flight Recorder: what a rank had asked for when it was written.

torch writes it as a pickle (`TORCH_FR_DUMP_TEMP_FILE`, `_dump_fr_trace()`) or as JSON (`_dump_fr_trace_json()`); versions
differ in what they leave out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

import msgspec

from ..errors import TraceError
from ..read.source import Source
from ..scanning import check_proportion
from ..vocabulary import DTYPE_NBYTES
from .plain_pickle import NotPlainError, read_plain_pickle

#: A dump of all that the recorder can keep is much smaller.
MAX_NBYTES: Final = 1024**3
PICKLE: Final = b"\x80"
#: Numbers beyond this are damage.
_MAX_NUMBER: Final = 2**62
#: In the order in which they are looked for in the names of operations, without `_`.
_KINDS: Final = (
    "allreduce", "allgather", "alltoall", "reducescatter", "broadcast", "barrier", "gather", "scatter", "reduce",
)  # fmt: skip
_DTYPES: Final = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip
#: Ranks, in a list that is written as text.
_NUMBER: Final = re.compile(r"\b[0-9]{1,7}\b")
_MAX_LIST: Final = 1_000_000
#: Sizes that are shown.
_MAX_SHOWN: Final = 2
#: Frames of torch itself, which say nothing.
_INNER: Final = ("/site-packages/", "/dist-packages/", "/torch/", "<frozen", "<string>")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """An operation that a rank has asked for; times in ns of its host's wall clock, -1 if they are unknown."""

    group: str
    seq: int
    kind: str
    """Of `vocabulary.COLLECTIVE_KINDS`; "send" and "recv" for messages between two ranks."""
    is_message: bool
    nbytes: int
    dtype: str
    created_ns: int
    started_ns: int
    completed_ns: int
    is_done: bool
    where: str
    """The user's line that called, as `train.py:12`, "" if unknown."""
    size_text: str
    """Sizes of the input, for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dump:
    """What one file holds."""

    source: Source
    rank: int
    version: str
    entries: tuple[Entry, ...]
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Ranks of process groups, as far as the file tells."""


class _Raw(msgspec.Struct, gc=False):
    """An entry of the JSON form; what may hold many values stays text until it is looked at."""

    process_group: msgspec.Raw = msgspec.Raw(b"null")
    input_sizes: msgspec.Raw = msgspec.Raw(b"null")
    input_dtypes: msgspec.Raw = msgspec.Raw(b"null")
    frames: msgspec.Raw = msgspec.Raw(b"null")
    pg_id: int | None = None
    collective_seq_id: int | None = None
    p2p_seq_id: int | None = None
    profiling_name: str = ""
    state: str = ""
    retired: bool = False
    is_p2p: bool = False
    time_created_ns: int | None = None
    time_discovered_started_ns: int | None = None
    time_discovered_completed_ns: int | None = None


class _File(msgspec.Struct, gc=False):
    entries: list[_Raw] = []
    pg_config: dict[str, dict[str, msgspec.Raw]] = {}
    pg_status: dict[str, dict[str, int | str]] = {}
    version: str = ""


_decode_file: Final = msgspec.json.Decoder(_File).decode


def read_dump(source: Source, rank: int) -> Dump:
    """Read one file.

    Raises:
        TraceError: it is damaged, or a pickle of something else.
    """
    source.most_nbytes = min(source.most_nbytes, MAX_NBYTES)
    data = source.read()
    try:
        if data[:1] == PICKLE:
            told = read_plain_pickle(data)
            entries, config, status = (told.get(name) for name in ("entries", "pg_config", "pg_status"))
            version = text(told.get("version"), 40)
            entries = [entry for entry in entries or [] if isinstance(entry, dict)]
            check_proportion(source, nbytes=len(data), events=len(entries))
        else:
            check_proportion(source, nbytes=len(data), events=data.count(b"{") + data.count(b"["))
            file = _decode_file(data)
            entries, version = [_fields(raw) for raw in file.entries], file.version
            status = file.pg_status
            config = {name: {key: _loads(raw) for key, raw in of.items()} for name, of in file.pg_config.items()}
    except NotPlainError as error:
        raise TraceError(f"{source.path}: {error}") from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError, AttributeError) as error:
        raise TraceError(f"{source.path} is a damaged dump of the Flight Recorder: {error}") from error
    completed = _completed(status)
    reader = _Entries(completed)
    return Dump(
        source=source,
        rank=rank,
        version=version,
        entries=tuple(reader.read(fields) for fields in entries),
        members=_members(config),
    )


def _loads(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _fields(raw: _Raw) -> dict[str, Any]:
    fields = {name: getattr(raw, name) for name in _Raw.__struct_fields__}
    return {name: _loads(value) if isinstance(value, msgspec.Raw) else value for name, value in fields.items()}


def text(value: object, most: int) -> str:
    """A text out of a dump; "" for anything else, which might be endless when written out."""
    return value[:most] if isinstance(value, str) else ""


def number(value: object, default: int = -1) -> int:
    """A number out of a dump, which may hold anything."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:  # noqa: PLR2004  64 bits
        value = int(value)
    return value if isinstance(value, int) and abs(value) < _MAX_NUMBER else default


def _completed(status: object) -> dict[int, int]:
    """The last collective that each process group, by number, has completed."""
    found = {}
    for name, of_group in status.items() if isinstance(status, dict) else ():
        if isinstance(of_group, dict):
            found[number(name)] = number(of_group.get("last_completed_collective"))
    return found


def _members(config: object) -> dict[str, tuple[int, ...]]:
    """Ranks by name of the group; they are written as a text, `[0, 1]`."""
    found = {}
    for name, of_group in config.items() if isinstance(config, dict) else ():
        ranks = _NUMBER.findall(text(of_group.get("ranks"), _MAX_LIST)) if isinstance(of_group, dict) else []
        if ranks:
            found[str(name)] = tuple(map(int, ranks))
    return found


class _Entries:
    """Makes entries; lists that several of them share are looked at once."""

    def __init__(self, completed: Mapping[int, int]) -> None:
        self._completed = completed
        self._places: dict[int, str] = {}
        self._sizes: dict[tuple[int, int], tuple[int, str]] = {}
        self._kept: list[Any] = []

    def read(self, fields: Mapping[str, Any]) -> Entry:
        name = text(fields.get("profiling_name"), 200)
        is_message = fields.get("is_p2p") is True
        dtypes = fields.get("input_dtypes")
        dtype = text(dtypes[0], 20) if isinstance(dtypes, (list, tuple)) and dtypes else ""
        dtype = _DTYPES.get(dtype, dtype.lower())
        nbytes, size_text = self._size_of(fields.get("input_sizes"), DTYPE_NBYTES.get(dtype, -1))
        seq = number(fields.get("p2p_seq_id" if is_message else "collective_seq_id"))
        completed_ns = number(fields.get("time_discovered_completed_ns")) or -1
        last = self._completed.get(number(fields.get("pg_id")), -1)
        is_done = fields.get("retired") is True or fields.get("state") == "completed" or completed_ns >= 0
        return Entry(
            group=_group(fields),
            seq=seq,
            kind=_kind(name),
            is_message=is_message,
            nbytes=nbytes,
            dtype=dtype,
            created_ns=number(fields.get("time_created_ns")),
            started_ns=number(fields.get("time_discovered_started_ns")) or -1,
            completed_ns=completed_ns,
            is_done=is_done or (not is_message and 0 <= seq <= last),
            where=self._place_of(fields.get("frames")),
            size_text=size_text,
        )

    def _place_of(self, frames: object) -> str:
        if not isinstance(frames, (list, tuple)):
            return ""
        if id(frames) not in self._places:
            self._kept.append(frames)  # so that its number stays its own
            self._places[id(frames)] = _place(frames)
        return self._places[id(frames)]

    def _size_of(self, sizes: object, of_element: int) -> tuple[int, str]:
        if not isinstance(sizes, (list, tuple)):
            return -1, ""
        key = id(sizes), of_element
        if key not in self._sizes:
            self._kept.append(sizes)
            self._sizes[key] = _bytes_of(sizes, of_element)
        return self._sizes[key]


def _group(fields: Mapping[str, Any]) -> str:
    """Name of the process group, with what it is for."""
    told = fields.get("process_group")
    if isinstance(told, (list, tuple)) and told:
        name, purpose = text(told[0], 80), text(told[1], 80) if len(told) > 1 else ""
        return f"{name} ({purpose})" if purpose not in {"", "undefined"} else name
    return str(number(fields.get("pg_id"), 0))


def _kind(name: str) -> str:
    """What kind of operation a name as `nccl:_all_gather_base` or `nccl:send 0->1` is of."""
    plain = name.rpartition(":")[2].lower()
    if plain.startswith(("send", "recv")):
        return plain[:4]
    plain = plain.replace("_", "")
    return next((kind for kind in _KINDS if kind in plain), "other")


def _place(frames: list[Any] | tuple[Any, ...]) -> str:
    """The innermost line that is not torch's own."""
    for frame in frames:
        if not isinstance(frame, dict):
            continue
        file = text(frame.get("filename"), 500)
        if file and not any(part in file for part in _INNER):
            return f"{PurePath(file).name}:{number(frame.get('line'), 0)}"
    return ""


def _bytes_of(sizes: list[Any] | tuple[Any, ...], of_element: int) -> tuple[int, str]:
    """Bytes of tensors of these sizes, -1 if they cannot be told, and the sizes as text."""
    total = 0
    for size in sizes:
        count = of_element
        for length in size if isinstance(size, (list, tuple)) else [-1]:
            count = count * number(length) if number(length) >= 0 and 0 <= count < _MAX_NUMBER else -1
        total = -1 if count < 0 or total < 0 else total + count
    shown = ", ".join(map(_shape, sizes[:_MAX_SHOWN]))
    return (total if 0 <= total < _MAX_NUMBER else -1), shown + (", …" if len(sizes) > _MAX_SHOWN else "")


def _shape(size: object) -> str:
    lengths = size if isinstance(size, (list, tuple)) else ()
    return "[" + ", ".join(str(number(length)) for length in lengths[:8]) + "]"
