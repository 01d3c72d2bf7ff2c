"""Trace files of every format, and what may become of them on a bad disk or in bad hands; all of it by number, so that it can be had again."""

import gzip
import io
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

from tests.unit.timeline.test_nsys import write_old_export
from tests.unit.timeline.test_readers import HORO, shard
from tlkit.timeline import open_trace
from tlkit.timeline.export.files import write

REPOSITORY = Path(__file__).resolve().parents[2]
#: Whole lines of recorded shards, so that a mutation is read in a tenth of a second.
SHARD_LINES = 600
#: Larger samples are left out for the same reason.
LARGEST_NBYTES = 150_000

Mutation = Callable[[random.Random, bytes], bytes]

TOKENS = (
    b"{}", b"[]", b"null", b"NaN", b"-1", b"1e308", b"1e999", b"99999999999999999999999", b"2147483648", b"9223372036854775808", b'"',
    b"\\", b'"\\ud800"', b"\x00", b"\xff\xfe", b'"<script>"', b'"\\u001b[31m"', b"[" * 600, b'{"a":' * 1200, b"]", b"}", b",", b"\n" * 50,
    b'"ph":"B"', b'"ph":"E"', b'"ph":"M"', b'"ts":-1', b'"dur":-5', b'"args":[]', b'"pid":"x"', b"true",
)  # fmt: skip
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
STRING = re.compile(rb'"[^"]{1,60}"')


def kineto() -> bytes:
    """A profile of a device with a collective, as Kineto writes it."""
    events = []
    for step in range(6):
        at = 1_000_000 + step * 1000
        events += [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1, "ts": at, "dur": 990},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": at + 10, "dur": 80, "args": {"External id": step}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + 20, "dur": 5, "args": {"correlation": step}},
            {"ph": "X", "cat": "kernel", "name": "sgemm", "pid": 0, "tid": 7, "ts": at + 40, "dur": 500, "args": {"correlation": step, "stream": 7, "device": 0}},
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "pid": 0, "tid": 20, "ts": at + 300, "dur": 400,
             "args": {"stream": 20, "Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float", "Group size": 2}},
        ]  # fmt: skip
    whole = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0}],
        "distributedInfo": {"rank": 0, "world_size": 2},
        "traceEvents": events,
    }
    return json.dumps(whole).encode()


def horovod() -> bytes:
    """A timeline of Horovod with a few rounds."""
    lines = HORO.removesuffix("]").splitlines()
    body = "\n".join(lines[5:])
    rounds = [body.replace('"ts": ', f'"ts": {1 + number}000') for number in range(12)]
    return ("\n".join(lines[:5]) + "\n" + ",\n".join(rounds) + "\n]").encode()


def chrome() -> bytes:
    """Spans, pairs and counters of any other program."""
    events = [
        {"ph": "X", "name": f"f{n % 9}", "cat": "c", "pid": 1, "tid": n % 3, "ts": n * 10, "dur": 8} for n in range(120)
    ]
    events += [{"ph": "BE"[n % 2], "name": "pair", "pid": 1, "tid": 9, "ts": n * 7} for n in range(40)]
    events += [
        {"ph": "C", "name": "load", "pid": 1, "tid": 0, "ts": n * 50, "args": {"value": n / 3}} for n in range(20)
    ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, indent=0).encode()


def recorded(name: str) -> bytes:
    """The first lines of a shard that this toolkit has recorded."""
    with gzip.open(REPOSITORY / "samples" / "traces" / name / "t.json.gz", "rt", encoding="utf-8") as file:
        lines = [line for _, line in zip(range(SHARD_LINES), file, strict=False)]
    return ("".join(lines).rstrip().rstrip(",") + "\n]\n").encode()


def corpus(folder: Path) -> dict[str, bytes]:
    """A whole file of each format, unpacked, by the name that it has to have."""
    found = {
        "shard.json": shard().encode(),
        "recorded.json": recorded("slow-rank"),
        "horovod.json": horovod(),
        "kineto.json": kineto(),
        "chrome.json": chrome(),
    }
    database = folder / "export.sqlite"
    write_old_export(database)
    found["nsight.sqlite"] = database.read_bytes()
    source = folder / "source.json"
    source.write_bytes(found["shard.json"])
    write(open_trace(source), folder / "merged.json", "chrome")
    found["merged.json"] = (folder / "merged.json").read_bytes()
    for sample in sorted((REPOSITORY / "samples" / "formats").glob("*/*")):
        if sample.suffix not in {".py", ".md"}:
            data = gzip.decompress(sample.read_bytes()) if sample.suffix == ".gz" else sample.read_bytes()
            if len(data) < LARGEST_NBYTES:
                found[sample.name.removesuffix(".gz")] = data
    return found


def cut(dice: random.Random, data: bytes) -> bytes:
    return data[: dice.randrange(len(data))]


def flip(dice: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 8, 64))):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def overwrite(dice: random.Random, data: bytes) -> bytes:
    changed, at = bytearray(data), dice.randrange(len(data))
    count = min(dice.choice((1, 4, 100, 4096)), len(data) - at)
    changed[at : at + count] = dice.choice((bytes(count), b"\xff" * count, dice.randbytes(count)))
    return bytes(changed)


def leave_out(dice: random.Random, data: bytes) -> bytes:
    at = dice.randrange(len(data))
    return data[:at] + data[at + dice.choice((1, 3, 30, 500, 5000)) :]


def repeat(dice: random.Random, data: bytes) -> bytes:
    at = dice.randrange(len(data))
    piece = data[at : at + dice.choice((1, 30, 500, 20_000))]
    return data[:at] + piece * dice.choice((2, 3, 40)) + data[at:]


def insert(dice: random.Random, data: bytes) -> bytes:
    at = dice.randrange(len(data))
    return data[:at] + dice.choice(TOKENS) + data[at:]


def _replace(dice: random.Random, data: bytes, pattern: re.Pattern[bytes]) -> bytes:
    places = [match.span() for match in pattern.finditer(data)]
    for begin, end in sorted(dice.sample(places, min(dice.choice((1, 1, 3, 20)), len(places))), reverse=True):
        data = data[:begin] + dice.choice(TOKENS) + data[end:]
    return data


def change_numbers(dice: random.Random, data: bytes) -> bytes:
    return _replace(dice, data, NUMBER)


def change_texts(dice: random.Random, data: bytes) -> bytes:
    return _replace(dice, data, STRING)


def shuffle_lines(dice: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    dice.shuffle(lines)
    return b"\n".join(lines)


MUTATIONS: tuple[Mutation, ...] = (
    cut, flip, flip, overwrite, leave_out, repeat, insert, insert, change_numbers, change_numbers, change_texts, shuffle_lines,
)  # fmt: skip


def mutate(number: int, files: dict[str, bytes]) -> tuple[str, bytes, int]:
    """The name, the content and the unpacked size of one damaged file."""
    dice = random.Random(number)
    name = dice.choice(sorted(files))
    data = files[name]
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        if data:
            data = dice.choice(MUTATIONS)(dice, data)
    if data and dice.random() < 0.05:  # the head of one file on another
        other = files[dice.choice(sorted(files))]
        data = other[: dice.randrange(min(len(other), 2000))] + data
    nbytes = len(data)
    if dice.random() < 0.25:
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as file:
            file.write(data)
        data = packed.getvalue()
        if dice.random() < 0.5:
            data = dice.choice((cut, flip, overwrite))(dice, data)
    return name, data, nbytes
