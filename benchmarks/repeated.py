"""Writes traces that are too large to be generated event by event: what one holds is repeated, with its numbers moved.

    python benchmarks/repeated.py kineto 20000 t20g.json           # megabytes; from the generator of `kineto_like.py`
    python benchmarks/repeated.py shards 1024 folder               # ranks; from the recorded run samples/traces/healthy

Every number that must grow does: times, ids, correlations, steps, numbers of collectives.  A shard has its rank's own ids, host
and place on it, and comes a little later or sooner than the others in each repetition; rank 0 tells when each rank arrived.
"""

import argparse
import gzip
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from kineto_like import write

SAMPLE: Final = Path(__file__).resolve().parent.parent / "samples" / "traces" / "healthy"
RANKS_A_HOST: Final = 8
#: Numbers begin here, so that all of them have as many digits.
_FIRST_ID: Final = 100_000_000
_FIRST_STEP: Final = 1_000_000
_FIRST_US: Final = 1_000_000_000
#: Between two repetitions, more than ranks are apart from each other.
_PAUSE_US: Final = 200
_JITTER_US: Final = 50
#: Of the sample: what comes before is warming up.
_FIRST_RECORDED_STEP: Final = 3


@dataclass(frozen=True, slots=True)
class Field:
    """Numbers of one kind in a text."""

    at: np.ndarray
    """Where each begins."""
    width: int
    """How many digits each has."""
    values: np.ndarray


class Template:
    """A text with numbers of as many digits as they will ever have, which can be moved.

    >>> Template(b'"ts":100.5,"ts":123.5', {"us": rb'"ts":([0-9]+)'}).moved({"us": 877})
    Traceback (most recent call last):
    ValueError: the numbers `us` need more digits
    >>> Template(b'"ts":100.5,"ts":123.5', {"us": rb'"ts":([0-9]+)'}).moved({"us": 500})
    b'"ts":600.5,"ts":623.5'
    """

    def __init__(self, text: bytes, patterns: Mapping[str, bytes]) -> None:
        self.text = text
        self.fields: dict[str, Field] = {}
        for name, pattern in patterns.items():
            spans = [match.span(1) for match in re.finditer(pattern, text)]
            widths = {end - start for start, end in spans}
            if len(widths) > 1:
                raise ValueError(f"the numbers `{name}` have between {min(widths)} and {max(widths)} digits")
            values = np.array([int(text[start:end]) for start, end in spans], np.int64)
            self.fields[name] = Field(
                np.array([start for start, _ in spans], np.int64), widths.pop() if widths else 0, values
            )

    def moved(self, moves: Mapping[str, int | np.ndarray]) -> bytes:
        """The text with so much added to the numbers of each name.

        Raises:
            ValueError: there is no room for the digits.
        """
        written = np.frombuffer(bytearray(self.text), np.uint8)
        for name, move in moves.items():
            field = self.fields[name]
            if not len(field.at):
                continue
            values = field.values + move
            if int(values.max()) >= 10**field.width:
                raise ValueError(f"the numbers `{name}` need more digits")
            for place in range(field.width - 1, -1, -1):
                values, digits = np.divmod(values, 10)
                written[field.at + place] = digits + ord("0")
        return written.tobytes()


def write_kineto(path: Path, nbytes: int, body_nbytes: int = 200_000_000) -> int:
    """Write a Kineto trace of about `nbytes`; returns how many events it has."""
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder) / "one.json"
        totals = write(one, min(body_nbytes, nbytes), first=_FIRST_ID)
        head, _, rest = one.read_bytes().partition(b'"traceEvents": [')
    body, _, tail = rest.rpartition(b"\n  ],")
    template = Template(
        body,
        {
            "us": rb'"ts": (\d+)\.',
            "external": rb'"External id": (\d+)',
            "correlation": rb'"correlation": (\d+)',
            "number": rb'"Ev Idx": (\d+)',
            "step": rb'"ProfilerStep#(\d+)"',
        },
    )
    # More than any event of the body is long.
    period_us = int(np.ptp(template.fields["us"].values)) + 10_000_000
    copies = max(1, round(nbytes / len(body)))
    ids = totals.events + 1
    with path.open("wb") as file:
        file.write(head + b'"traceEvents": [')
        for number in range(copies):
            moves = dict.fromkeys(("external", "correlation", "number"), number * ids)
            file.write(b"," if number else b"")
            file.write(template.moved({**moves, "us": number * period_us, "step": number * totals.steps}))
        file.write(b"\n  ]," + tail)
    return copies * totals.events


@dataclass(frozen=True, slots=True)
class Recorded:
    """Some steps of one rank, as a template."""

    header: dict[str, Any]
    """The args of `tlkit_shard`."""
    names: list[str]
    """The other lines at the beginning."""
    template: Template
    step_ends: list[int]
    """Where in the template each step ends."""
    events: list[int]
    """How many events it has until then."""
    period_us: int
    tensors: int
    collectives: int


@lru_cache
def record(shard: int, digits: int, size: int) -> Recorded:
    """What a rank of the sample recorded, with room for ranks of so many digits."""
    with gzip.open(SAMPLE / ("t.json.gz" if shard == 0 else f"t.rank{shard}.json.gz"), "rt") as file:
        lines = file.read().splitlines()[1:-1]
    events = [json.loads(line.rstrip(",")) for line in lines]
    steps = [number for number, event in enumerate(events) if event["name"] == "STEP"]
    begin, end = steps[_FIRST_RECORDED_STEP - 1] + 1, steps[-1] + 1
    first_us = events[steps[_FIRST_RECORDED_STEP]]["ts"]
    until_us = events[steps[-1]]["ts"] + events[steps[-1]]["dur"]
    chosen = lines[begin:end]
    rank = "9" if digits == 1 else "1" + "0" * (digits - 1)

    def later(match: re.Match[str]) -> str:
        return f"{match[1]}{float(match[2]) - first_us + _FIRST_US:.3f}"

    def arrivals(match: re.Match[str]) -> str:
        own, other = (float(text) - first_us + _FIRST_US for text in match[1].split(","))
        return f'"arrivals":[{own:.3f},{",".join([f"{other:.3f}"] * (size - 1))}]'

    text = "\n".join(chosen) + "\n"
    text = re.sub(r'"arrivals":\[([^]]*)\]', arrivals, text)
    text = re.sub(r'("(?:ts|submitted|negotiated)":)([\d.]+)', later, text)
    text = re.sub(r'"pid":\d+', f'"pid":{rank}', text)
    text = re.sub(r'"id":"\d+\.(\d+)"', lambda match: f'"id":"{rank}.{int(match[1]) + _FIRST_ID}"', text)
    text = re.sub(r'"(seq|step)":(\d+)', lambda match: f'"{match[1]}":{int(match[2]) + _FIRST_STEP}', text)
    ends = [match.end() for match in re.finditer(r'"name":"STEP".*\n', text)]
    patterns = {
        "us": rb'"(?:ts|submitted|negotiated)":(\d+)\.',
        "arrival": rb"[\[,](\d{10})\.\d{3}(?=[,\]])",
        "pid": rb'"pid":(\d+)',
        "id_rank": rb'"id":"(\d+)\.',
        "id": rb'"id":"\d+\.(\d+)"',
        "seq": rb'"seq":(\d+)',
        "step": rb'"step":(\d+)',
    }
    ids = [int(event["id"].partition(".")[2]) for event in events[begin:end] if "id" in event]
    seqs = [event["args"]["seq"] for event in events[begin:end] if "seq" in event.get("args", {})]
    return Recorded(
        header=events[0]["args"],
        names=lines[1 : next(number for number, event in enumerate(events) if event["ph"] != "M")],
        template=Template(text.encode(), patterns),
        step_ends=ends,
        events=[text.count("\n", 0, end) for end in ends],
        period_us=round(until_us - first_us) + _PAUSE_US,
        tensors=max(ids) - min(ids) + 1,
        collectives=max(seqs) - min(seqs) + 1,
    )


def _repetitions(rank: int, size: int, events: int) -> Iterator[bytes]:
    """The steps of one rank, until there are as many events."""
    recorded = record(min(rank, 1), len(str(rank)), size)
    fields, steps = recorded.template.fields, len(recorded.step_ends)
    place = rank - int(fields["pid"].values[0])
    dice = np.random.default_rng(0)  # the same for every rank: each knows when the others come
    written = number = 0
    while written < events:
        late_us = dice.integers(0, _JITTER_US, size)
        text = recorded.template.moved(
            {
                "us": number * recorded.period_us + int(late_us[rank]),
                "arrival": number * recorded.period_us + np.resize(late_us, len(fields["arrival"].at)),
                "pid": place,
                "id_rank": place,
                "id": number * recorded.tensors,
                "seq": number * recorded.collectives,
                "step": number * steps,
            }
        )
        whole = next((step for step, count in enumerate(recorded.events) if written + count >= events), steps - 1)
        yield text[: recorded.step_ends[whole]]
        written += recorded.events[whole]
        number += 1


def write_shard(folder: Path, size: int, events: int, rank: int) -> int:
    """Write the shard of one rank; returns how many events it has."""
    recorded = record(min(rank, 1), len(str(rank)), size)
    host = rank // RANKS_A_HOST
    clock = {**recorded.header["clock"], "offset_ns": 0, "uncertainty_ns": 0, "method": "same-host"}
    if host:
        clock |= {"uncertainty_ns": 2000 * _JITTER_US, "method": "min-rtt"}
    header = {
        **recorded.header,
        "rank": rank,
        "size": size,
        "local_rank": rank % RANKS_A_HOST,
        "host": f"host-{host}",
        "boot_id": f"boot-{host}",
        "process_id": 1000 + rank,
        "clock": clock,
    }
    first = f'{{"name":"tlkit_shard","ph":"M","pid":{rank},"tid":0,"ts":0.000,"args":{json.dumps(header)}}},\n'
    names = [re.sub(r'"pid":\d+', f'"pid":{rank}', line) for line in recorded.names]
    names = [re.sub(r'"rank \d+ \([^)]*\)"', f'"rank {rank} (host-{host})"', line) for line in names]
    count = 1 + len(names)
    path = folder / ("t.json" if rank == 0 else f"t.rank{rank}.json")
    with path.open("wb") as file:
        file.write(b"[\n" + first.encode() + "".join(f"{line}\n" for line in names).encode())
        for text in _repetitions(rank, size, events):
            file.write(text)
            count += text.count(b"\n")
        end = (
            f'{{"name":"tlkit_end","ph":"M","pid":{rank},"tid":0,"ts":0.000,"args":{{"events":{count},"lost":0}}}}\n]\n'
        )
        file.write(end.encode())
    return count + 1


def write_shards(folder: Path, size: int, events: int) -> int:
    """Write a shard of about so many events for each rank; returns how many there are in all."""
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return sum(pool.map(partial(write_shard, folder, size, events), range(size), chunksize=8))


def main() -> None:
    """Write one trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("kineto", "shards"))
    parser.add_argument("amount", type=int, help="megabytes of a Kineto trace, or ranks that have a shard each")
    parser.add_argument("path", type=Path)
    parser.add_argument("--events", type=int, default=100_000, help="of each shard (default 100000)")
    arguments = parser.parse_args()
    if arguments.kind == "kineto":
        events = write_kineto(arguments.path, arguments.amount * 1_000_000)
    else:
        events = write_shards(arguments.path, arguments.amount, arguments.events)
    print(f"{arguments.path}: {events:,} events")


if __name__ == "__main__":
    main()
