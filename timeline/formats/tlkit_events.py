"""The events of one of our shards, told apart.

Nearly all of them belong to the lives of tensors, eight to a life in a fixed order; those are told apart for all lives at once.
What is left unfinished, because the process died, is looked at one by one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..errors import TraceError
from ..model.columns import Times
from ..model.trace import MAX_RANKS
from ..read.args import FileArgs
from ..read.source import Source
from ..record.sampled_format import STEPS_EVENT
from ..record.shard_format import SETTINGS_EVENT
from ..scanning import Events, decode_args
from ..vocabulary import COLLECTIVE_KINDS, NEGOTIATE_PREFIX, CostlySetting

#: Args that are kept while a shard is scanned.
INTEGERS: Final = ("seq", "process_set", "bytes", "tensors", "step", "blocking", "peer", "tag")
TEXTS: Final = ("dtype", "algorithm", "op", "submitted", "negotiated", "arrivals", "ranks", "value", "caller", "where")

#: A time that the shard does not tell.
UNKNOWN_NS: Final = int(np.iinfo(np.int64).min)

KIND_OF_NAME: Final = {kind.upper(): kind for kind in COLLECTIVE_KINDS}

#: begin tensor, begin and end of negotiation, of the queue, of the collective, end of the tensor.
_LIFE: Final = np.frombuffer(b"bbebebee", np.uint8)
#: Characters of an error, and of words about a setting, that are kept.
MAX_ERROR: Final = 500
MAX_DETAIL: Final = 200
_METADATA: Final = {"tlkit_shard", "tlkit_clock", "tlkit_model", SETTINGS_EVENT, STEPS_EVENT, "tlkit_end"}
_IS_KNOWN_PHASE: Final = np.isin(np.arange(256), np.frombuffer(b"XbeBECMsftin", np.uint8))


@dataclass(slots=True)
class Header:
    """What `tlkit_shard` says."""

    run_id: str = ""
    rank: int = 0
    size: int = 0
    host: str = ""
    local_rank: int = 0
    runtime: str = ""
    framework: str = ""
    origin_unix_ns: int = 0
    offset_ns: int = 0
    uncertainty_ns: int = 0
    part: int = 1
    """Of a shard whose oldest parts may be gone (shard_parts.py)."""


def known_settings(told: object, shares: object) -> dict[str, float]:
    """Those that this version has words for, with the share of the model that each concerns.

    >>> known_settings(["double-precision", "tracemalloc", "of tomorrow", 1], {"double-precision": 0.98, "tracemalloc": "x"})
    {'tracemalloc': 0.0, 'double-precision': 0.98}
    """
    on = told if isinstance(told, list) else []
    by_name = shares if isinstance(shares, dict) else {}
    return {str(one): _share(by_name.get(str(one))) for one in CostlySetting if str(one) in on}


def known_details(told: object, on: Mapping[str, float]) -> dict[str, str]:
    """Words for some of the settings that are on; they come from a file.

    >>> known_details({"computed-again": "Encoder, 2 times", "of tomorrow": "x"}, {"computed-again": 0.4})
    {'computed-again': 'Encoder, 2 times'}
    """
    words = told if isinstance(told, dict) else {}
    return {name: str(words[name])[:MAX_DETAIL] for name in on if name in words}


def _share(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 <= value <= 1 else 0.0


def integer(value: object, default: int) -> int:
    """A number out of args, which may hold anything."""
    return int(value) if isinstance(value, (int, float)) and abs(value) < 2**62 else default


def nanoseconds(text: str) -> int:
    """Microseconds as JSON writes them; UNKNOWN_NS for what is no time."""
    try:
        value = float(text)
    except ValueError:
        return UNKNOWN_NS
    return round(value * 1000) if abs(value) < 2**52 else UNKNOWN_NS


def header_of(args: dict[str, Any], source: Source) -> Header:
    """The header out of the args of `tlkit_shard`.

    Raises:
        TraceError: it names a rank that no job has.
    """
    rank = args.get("rank")
    if isinstance(rank, (int, float)) and not 0 <= rank <= MAX_RANKS:
        raise TraceError(f"{source.path}: its first line is damaged: no job has a rank {str(rank)[:40]}")
    clock = args.get("clock")
    clock = clock if isinstance(clock, dict) else {}
    return Header(
        run_id=str(args.get("run_id", "")),
        rank=integer(args.get("rank"), 0),
        size=integer(args.get("size"), 0),
        host=str(args.get("host", "")),
        local_rank=integer(args.get("local_rank"), 0),
        runtime=str(args.get("runtime", "")),
        framework=str(args.get("framework", "torch")),
        origin_unix_ns=integer(clock.get("origin_unix_ns"), 0),
        offset_ns=integer(clock.get("offset_ns"), 0),
        uncertainty_ns=integer(clock.get("uncertainty_ns"), 0),
        part=integer(args.get("part"), 1),
    )


class ShardEvents:
    """The events of a shard: complete spans, lives of tensors, and what is left unfinished."""

    def __init__(self, source: Source, events: Events) -> None:
        """Tell the events of `source` apart."""
        self.source = source
        self.events = events
        self.count = len(events)
        """Events of the shard."""
        self.header = Header()
        self.is_closed = False
        """Whether the runtime has closed the file."""
        self.error = ""
        """What ended the program, as the runtime saw it."""
        self.clock_readings: list[tuple[int, int, int]] = []
        """When the clock's offset was measured again, what it was, and by how much that may be wrong."""
        self.largest_gradient: tuple[str, int, int] | None = None
        self.settings: dict[str, float] | None = None
        self.details: dict[str, str] = {}
        self.told_sums: list[tuple[int, dict[str, Any]]] = []
        """When steps began of which only sums are told, and what is told."""
        self.names: list[str] = events.texts["name"]
        self.thread_of = np.array(
            [value if isinstance(value, int) and abs(value) < 2**31 else -1 for value in events.texts["thread"]]
            or [-1],
            np.int64,
        )
        """The number of each thread; -1 for what is none."""
        unknown = int((~_IS_KNOWN_PHASE[events.phase]).sum())
        self.drop("unknown_phase", unknown)
        self._read_metadata()
        complete = self.rows_of("X")
        bad = events.duration[complete] < 0
        self.drop("impossible_time", int(bad.sum()))
        self.complete = complete[~bad]
        """Rows of complete spans."""
        ends = [events.start[self.complete] + events.duration[self.complete]]
        life_ends = self._split_lives()
        closed = self._pair_edges()
        self.last_ns = max((int(times.max()) for times in (*ends, life_ends, closed) if len(times)), default=0)
        """The last sign of life."""

    def drop(self, reason: str, count: int) -> None:
        """Count what cannot be used."""
        if count:
            self.source.dropped[reason] += count

    def rows_of(self, phase: str) -> np.ndarray:
        """Events of a phase."""
        return np.flatnonzero(self.events.phase == ord(phase))

    def _read_metadata(self) -> None:
        events = self.events
        rows = [row for row in self.rows_of("M").tolist() if self.names[events.name[row]] in _METADATA]
        texts = FileArgs.of_events([(self.source, events, np.array(rows, np.int64))])
        for text, row in zip(texts.together(), rows, strict=True):
            args, name = decode_args(text), self.names[events.name[row]]
            if name == "tlkit_shard":
                self.header = header_of(args, self.source)
            elif name == "tlkit_clock":
                reading = integer(args.get("offset_ns"), 0), abs(integer(args.get("uncertainty_ns"), 0))
                self.clock_readings.append((int(events.start[row]), *reading))
            elif name == STEPS_EVENT:
                self.told_sums.append((int(events.start[row]), args))
            elif name == SETTINGS_EVENT:  # the last one holds
                self.settings = known_settings(args.get("on"), args.get("shares"))
                self.details = known_details(args.get("details"), self.settings)
            elif name == "tlkit_model":
                nbytes, all_nbytes = integer(args.get("largest_bytes"), 0), integer(args.get("gradient_bytes"), 0)
                if 0 < nbytes <= all_nbytes:
                    self.largest_gradient = (str(args.get("largest", "")), nbytes, all_nbytes)
            else:
                self.drop("lost_while_recording", integer(args.get("lost"), 0))
                self.is_closed, self.error = True, str(args.get("error", ""))[:MAX_ERROR]

    # Lives of tensors.

    def _split_lives(self) -> Times:
        """Complete lives, as rows of their eight events; what is incomplete goes to `_follow`.  Returns when lives ended."""
        events = self.events
        rows = np.flatnonzero((events.phase == ord("b")) | (events.phase == ord("e")))
        self.unfinished: list[dict[str, Any]] = []
        self.followed: list[dict[str, Any]] = []
        if not len(rows):
            self.lives = np.zeros((0, len(_LIFE)), np.int64)
            return rows
        order = np.argsort(events.id[rows], kind="stable")
        rows = rows[order]
        ids = events.id[rows]
        firsts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]])) if len(ids) else np.zeros(0, np.int64)
        counts = np.diff(np.append(firsts, len(ids)))
        eight = firsts[counts == len(_LIFE)]
        lives = rows[eight[:, None] + np.arange(len(_LIFE))] if len(eight) else np.zeros((0, len(_LIFE)), np.int64)
        as_expected = (events.phase[lives] == _LIFE).all(axis=1)
        as_expected &= events.name[lives[:, 0]] == events.name[lives[:, 7]]
        self.lives = lives[as_expected]
        regular = np.zeros(len(firsts), bool)
        regular[np.flatnonzero(counts == len(_LIFE))[as_expected]] = True
        for first, count in zip(firsts[~regular].tolist(), counts[~regular].tolist(), strict=True):
            self._follow(rows[first : first + count].tolist())
        # Lives appear in the order in which they ended.
        self.lives = self.lives[np.argsort(self.lives[:, 7], kind="stable")]
        ends = [events.start[self.lives[:, 7]], np.array([life["end_ns"] for life in self.followed], np.int64)]
        return np.concatenate(ends)

    def _follow(self, rows: list[int]) -> None:
        """A life that is not as usual, event by event."""
        events, life = self.events, None
        open_phase = 0
        for row in rows:
            name, at_ns = self.names[events.name[row]], int(events.start[row])
            if events.phase[row] == ord("b"):
                if life is None:
                    life = {
                        "row": row, "name": name, "kind": "", "seq": -1, "submitted_ns": at_ns, "negotiated_ns": UNKNOWN_NS,
                        "start_ns": UNKNOWN_NS, "end_ns": UNKNOWN_NS, "phases": [],
                    }  # fmt: skip
                elif name.startswith(NEGOTIATE_PREFIX):
                    life["kind"] = KIND_OF_NAME.get(name.removeprefix(NEGOTIATE_PREFIX), "")
                open_phase = at_ns
                continue
            if life is None:
                self.drop("orphan_end", 1)
                continue
            if name == life["name"]:
                life["end_ns"] = at_ns
                self.followed.append(life)
                life = None
                continue
            if name.startswith(NEGOTIATE_PREFIX):
                life["negotiated_ns"] = at_ns
            elif name in KIND_OF_NAME:
                life["start_ns"] = open_phase
                life["seq"] = self.integer_of("seq", row, -1)
            life["phases"].append((name, open_phase, max(at_ns - open_phase, 0)))
        if life is not None:
            self.drop("unclosed_begin", 1)
            self.unfinished.append(life)

    def integer_of(self, key: str, row: int, default: int) -> int:
        """An integer out of the args of an event."""
        found = self.events.keys[key]
        position = int(np.searchsorted(found.rows, row))
        return int(found.numbers[position]) if position < len(found.rows) and found.rows[position] == row else default

    # Spans that were begun at a flush.

    def _pair_edges(self) -> Times:
        """They are few, and may end in any order relative to it: matched by name.  Returns when they ended."""
        events = self.events
        self.edges: list[tuple[int, int]] = []
        """Rows of the begin and the end; -1 for what has no end."""
        opened: dict[int, list[int]] = {}
        for row in np.flatnonzero((events.phase == ord("B")) | (events.phase == ord("E"))).tolist():
            stack = opened.setdefault(int(events.thread[row]), [])
            if events.phase[row] == ord("B"):
                stack.append(row)
                continue
            for position in range(len(stack) - 1, -1, -1):
                if events.name[stack[position]] == events.name[row]:
                    self.edges.append((stack.pop(position), row))
                    break
            else:
                self.drop("orphan_end", 1)
        ends = np.array([int(events.start[end]) for _, end in self.edges], np.int64)
        for stack in opened.values():
            self.drop("unclosed_begin", len(stack))
            self.edges += [(row, -1) for row in stack]
        return ends
