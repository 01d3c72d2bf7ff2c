"""The tables of one of our shards: spans, collectives, tensors, steps and counters of one rank, on its own clock."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ..model.columns import Times, no_rows
from ..model.ending import OpenSpan, OpenTensor, RankEnd, make_end
from ..model.trace import COLLECTIVE_COLUMNS, MESSAGE_COLUMNS, TENSOR_COLUMNS
from ..read.args import Places
from ..read.source import Source
from ..scanning import Events
from ..vocabulary import (
    COLLECTIVE_KINDS,
    LANE_TIDS,
    MEMCPY_IN,
    MEMCPY_OUT,
    MESSAGE_DIRECTIONS,
    NEGOTIATE_PREFIX,
    QUEUE,
    STEP,
    WORKER_TID,
    Category,
    LaneKind,
)
from .tlkit_calls import blocking_at, callers_at, make_messages
from .tlkit_counters import make_counters
from .tlkit_events import KIND_OF_NAME, UNKNOWN_NS, ShardEvents, integer, nanoseconds
from .tlkit_sums import Sums, read_sums

Table = dict[str, Any]
"""Columns by name: arrays, or `Encoded` for texts."""

_LANE_OF_TID: Final = {tid: lane for lane, tid in LANE_TIDS.items()}
_COMMUNICATION: Final = LANE_TIDS[LaneKind.COMMUNICATION]
_CATEGORIES: Final = [str(category) for category in Category]
_NUMBER_OF: Final = {category: number for number, category in enumerate(_CATEGORIES)}
_OTHER: Final = _NUMBER_OF[str(Category.OTHER)]
_LANE_KINDS: Final = [str(kind) for kind in LaneKind]
_KIND_NUMBER: Final = {kind: number for number, kind in enumerate(LaneKind)}


class Shard(ShardEvents):
    """The tables of one shard, without the rank; times in ns on the shard's clock, UNKNOWN_NS where it does not tell."""

    def __init__(self, source: Source, events: Events) -> None:
        """Make the tables of `source`, unless it has no step in full and `SumsShards` may make them of many shards at once."""
        super().__init__(source, events)
        self.told_arrivals: list[tuple[int, int, int]] = []
        """Row of `collectives`, rank, and when that rank arrived."""
        self.knows_order = True
        """Whether anything is known of what happened within steps; not if nothing but sums of steps is told."""
        self.arg_places = Places(np.zeros(0, np.int64), np.zeros(0, np.int32), [])
        """Where the args of the spans lie."""
        self._opened: list[OpenSpan] | None = None
        """Spans that did not end, on the shard's clock; None until the tables are made."""
        self.steps = self._make_steps()
        self.may_hold_sums_only = bool(self.told_sums) and not len(self.steps["step"])
        if not self.may_hold_sums_only:
            self.make_tables(*read_sums(self.told_sums))

    def make_tables(self, sums: Sums, bad: int) -> None:
        """Make all tables.

        Args:
            sums: the steps that were not recorded in full.
            bad: events that tell nothing of them.
        """
        self.sums = sums
        self.drop("sums_without_sense", bad)
        self.counters = make_counters(self)
        self.tensors = self.make_tensors()
        self.spans = self._make_spans()
        self.collectives = self._make_communication()
        self._opened = self._find_opened()
        # Of a thousand shards these would take three times as much memory as the tables.
        del self.events, self.lives, self.complete

    def forget_order(self) -> None:
        """No step was recorded in full: what there is of spans is no step's."""
        self.knows_order = False
        self.complete = self.complete[:0]
        self.edges = [(begin, end) for begin, end in self.edges if end < 0]

    @property
    def has_spans(self) -> bool:
        """Whether anything took time."""
        return len(self.spans["start_ns"]) > 0

    @property
    def has_lives(self) -> bool:
        """Whether it tells of tensors that were reduced."""
        return bool(len(self.lives) or self.followed)

    def make_tensors(self) -> Table:
        """The columns of TENSOR_COLUMNS."""
        events, lives = self.events, self.lives
        if not self.has_lives:
            return no_rows(TENSOR_COLUMNS, kind=["", *COLLECTIVE_KINDS])
        nbytes, process_set, seq = (events.dense(key) for key in ("bytes", "process_set", "seq"))
        kind_of = [KIND_OF_NAME.get(name.removeprefix(NEGOTIATE_PREFIX), "") for name in self.names] or [""]
        kinds = ["", *COLLECTIVE_KINDS]
        number_of_kind = np.array([kinds.index(kind) for kind in kind_of], np.int8)
        # Others are agreed on in the same way, but nothing is executed: process sets that come and go.
        is_collective = number_of_kind[events.name[lives[:, 1]]] > 0
        others = self.followed
        names = {name: number for number, name in enumerate(self.names)}

        def both(array: np.ndarray, followed: list[int]) -> np.ndarray:
            return np.concatenate([array, np.array(followed, array.dtype)])

        return {
            "process_set": both(
                np.maximum(process_set[lives[:, 0]], 0), [max(int(process_set[life["row"]]), 0) for life in others]
            ).astype(np.int32),
            "seq": both(np.where(is_collective, seq[lives[:, 6]], -1), [life["seq"] for life in others]),
            "name": (both(events.name[lives[:, 0]], [names[life["name"]] for life in others]), self.names),
            "kind": (
                both(number_of_kind[events.name[lives[:, 1]]], [kinds.index(life["kind"]) for life in others]),
                kinds,
            ),
            "nbytes": both(nbytes[lives[:, 0]], [int(nbytes[life["row"]]) for life in others]),
            "submitted_ns": both(events.start[lives[:, 0]], [life["submitted_ns"] for life in others]),
            "negotiated_ns": both(events.start[lives[:, 2]], [life["negotiated_ns"] for life in others]),
            "start_ns": both(
                np.where(is_collective, events.start[lives[:, 5]], UNKNOWN_NS), [life["start_ns"] for life in others]
            ),
            "end_ns": both(events.start[lives[:, 7]], [life["end_ns"] for life in others]),
            "caller": callers_at(
                events.keys["caller"], np.append(lives[:, 0], np.array([life["row"] for life in others], np.int64))
            ),
        }

    def _make_spans(self) -> Table:
        """Complete spans, those that were begun at a flush, and the phases of tensors' lives, in this order."""
        events = self.events
        begun = np.array([begin for begin, _ in self.edges], np.int64)
        ended = np.array([end for _, end in self.edges], np.int64)
        rows = np.concatenate([self.complete, begun])
        threads = self.thread_of[events.thread[rows]]
        durations = np.where(
            ended >= 0, events.start[np.maximum(ended, 0)] - events.start[begun], self.last_ns - events.start[begun]
        )
        # Args of the end complete those of the beginning.
        with_args = np.concatenate(
            [self.complete, np.where((ended >= 0) & (events.args_start[np.maximum(ended, 0)] != -1), ended, begun)]
        )
        has_args = events.args_start[with_args] != -1
        rows_of_args = with_args[has_args]
        self.arg_places = Places(events.args_start[rows_of_args], events.args_nbytes[rows_of_args], events.own_args)
        args_row = np.full(len(rows), -1, np.int64)
        args_row[has_args] = np.arange(int(has_args.sum()))
        category_of = np.array([_NUMBER_OF.get(text, _OTHER) for text in events.texts["category"]] or [_OTHER], np.int8)
        lanes, lane_numbers, kind_numbers = self._lanes(threads)

        # Phases of lives: begin and end of negotiation, queue and collective.
        lives = self.lives
        begins, finishes = lives[:, [1, 3, 5]].ravel(), lives[:, [2, 4, 6]].ravel()
        phase_category = np.tile(
            np.array(
                [_NUMBER_OF[Category.NEGOTIATE], _NUMBER_OF[Category.QUEUE], _NUMBER_OF[Category.COLLECTIVE]], np.int8
            ),
            len(lives),
        )
        odd = self._odd_phases()
        tensor_kind = _KIND_NUMBER[LaneKind.TENSOR]
        lane_texts = [*lanes, *self.names]
        all_names = [*self.names, *(name for _, name, *_ in odd)]
        of_name = {name: number for number, name in enumerate(self.names)}
        extra = len(begins) + len(odd)
        return {
            "lane": (
                np.concatenate(
                    [
                        lane_numbers,
                        np.repeat(events.name[lives[:, 0]], 3) + len(lanes),
                        np.array([of_name[lane] + len(lanes) for lane, *_ in odd], np.int64),
                    ]
                ).astype(np.int32),
                lane_texts,
            ),
            "lane_kind": (np.concatenate([kind_numbers, np.full(extra, tensor_kind, np.int8)]), _LANE_KINDS),
            "category": (
                np.concatenate(
                    [
                        category_of[events.category[rows]],
                        phase_category,
                        np.array([_NUMBER_OF[_category_of(name)] for _, name, *_ in odd], np.int8),
                    ]
                ),
                _CATEGORIES,
            ),
            "name": (
                np.concatenate(
                    [
                        events.name[rows],
                        events.name[begins],
                        np.arange(len(self.names), len(self.names) + len(odd), dtype=np.int32),
                    ]
                ),
                all_names,
            ),
            "start_ns": np.concatenate(
                [events.start[rows], events.start[begins], np.array([s for *_, s, _ in odd], np.int64)]
            ),
            "dur_ns": np.concatenate(
                [
                    events.duration[self.complete],
                    np.maximum(durations, 0),
                    np.maximum(events.start[finishes] - events.start[begins], 0),
                    np.array([d for *_, d in odd], np.int64),
                ]
            ),
            "args_row": np.concatenate([args_row, np.full(extra, -1, np.int64)]),
        }

    def end(self, finished: Callable[[Times], Times]) -> RankEnd:
        """How the recording ends; `finished` brings times to the run's clock."""

        def at(time_ns: int) -> int:
            return int(finished(np.array([time_ns], np.int64))[0])

        opened = self._find_opened() if self._opened is None else self._opened
        return make_end(
            is_closed=self.is_closed,
            error=self.error,
            open_spans=[replace(span, start_ns=at(span.start_ns)) for span in opened],
            open_tensors=[
                OpenTensor(
                    name=life["name"],
                    kind=life["kind"],
                    submitted_ns=at(life["submitted_ns"]),
                    is_negotiated=life["negotiated_ns"] != UNKNOWN_NS,
                )
                for life in self.unfinished
            ],
        )

    def _find_opened(self) -> list[OpenSpan]:
        rows = np.array([begin for begin, end in self.edges if end < 0], np.int64)
        lanes, numbers, _ = self._lanes(self.thread_of[self.events.thread[rows]])
        categories = self.events.texts["category"]
        return [
            OpenSpan(
                lane=lanes[number],
                category=str(categories[self.events.category[row]]),
                name=self.names[self.events.name[row]],
                start_ns=int(self.events.start[row]),
            )
            for row, number in zip(rows.tolist(), numbers.tolist(), strict=True)
        ]

    def _odd_phases(self) -> list[tuple[str, str, int, int]]:
        """Phases of the lives that are not as usual: tensor, name, start and duration.

        What was under way when the process died lasted at least until the last sign of life.
        """
        found = [
            (life["name"], name, start_ns, dur_ns)
            for life in (*self.followed, *self.unfinished)
            for name, start_ns, dur_ns in life["phases"]
        ]
        for life in self.unfinished:
            if life["negotiated_ns"] == UNKNOWN_NS:
                wait_ns = max(self.last_ns - life["submitted_ns"], 0)
                found.append((life["name"], f"{NEGOTIATE_PREFIX}{life['kind'].upper()}", life["submitted_ns"], wait_ns))
        return found

    @staticmethod
    def _lanes(threads: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Names of lanes, and the lane and its kind for each span."""
        unique, inverse = np.unique(threads, return_inverse=True)
        lanes, kinds = [], []
        for tid in unique.tolist():
            kind = LaneKind.WORKER if tid >= WORKER_TID else _LANE_OF_TID.get(tid, LaneKind.OTHER)
            lanes.append(f"data worker {tid - WORKER_TID}" if kind is LaneKind.WORKER else str(kind))
            kinds.append(_KIND_NUMBER[kind])
        return lanes, inverse.astype(np.int64), np.array(kinds, np.int8)[inverse]

    def _make_steps(self) -> Table:
        events, rows = self.events, self.complete
        is_step = np.array([name == STEP for name in self.names] or [False])[events.name[rows]]
        rows = rows[is_step & (self.thread_of[events.thread[rows]] == LANE_TIDS[LaneKind.STEPS])]
        return {
            "step": events.dense("step", 0)[rows],
            "start_ns": events.start[rows],
            "end_ns": events.start[rows] + events.duration[rows],
        }

    def _make_communication(self) -> Table:
        """One row for each executed collective, with what the spans inside it say; messages become `self.messages`."""
        events, rows = self.events, self.complete
        closed = [begin for begin, end in self.edges if end >= 0]
        rows = np.concatenate([rows, np.array(closed, np.int64)])
        rows = rows[self.thread_of[events.thread[rows]] == _COMMUNICATION]
        if not len(rows):
            self.messages = no_rows(MESSAGE_COLUMNS)
            return no_rows(COLLECTIVE_COLUMNS, kind=COLLECTIVE_KINDS)
        durations = events.duration.copy()
        args_of = np.arange(len(events))
        for begin, end in self.edges:
            if end >= 0:
                durations[begin] = max(int(events.start[end] - events.start[begin]), 0)
                args_of[begin] = end if events.args_start[end] != -1 else begin
        is_batch = np.array([name in KIND_OF_NAME for name in self.names] or [False])[events.name[rows]]
        is_message = np.array([name in MESSAGE_DIRECTIONS for name in self.names] or [False])[events.name[rows]]
        self.messages = self._make_messages(rows[is_message], durations, args_of)
        batches, children = rows[is_batch], rows[~is_batch & ~is_message]
        children = children[np.argsort(events.start[children], kind="stable")]
        child_starts = events.start[children]
        first = np.searchsorted(child_starts, events.start[batches])
        last = np.searchsorted(child_starts, events.start[batches] + np.maximum(durations[batches], 1))
        starts, lengths, copies = (
            events.start[batches].copy(),
            durations[batches].copy(),
            np.zeros(len(batches), np.int64),
        )
        for batch in np.flatnonzero(last > first).tolist():
            for child in children[first[batch] : last[batch]].tolist():
                if self.names[events.name[child]] in {MEMCPY_IN, MEMCPY_OUT}:
                    copies[batch] += durations[child]
                else:
                    starts[batch], lengths[batch] = events.start[child], durations[child]
        keys = args_of[batches].tolist()

        def text(key: str) -> tuple[np.ndarray, list[str]]:
            numbers: dict[str, int] = {}
            texts = events.keys[key].texts_of(args_of[batches])
            return np.array([numbers.setdefault(each, len(numbers)) for each in texts], np.int32), list(numbers)

        number = self._numbers_at(keys)
        self._tell_arrivals(keys)
        callers = callers_at(events.keys["caller"], args_of[batches])
        kinds = list(COLLECTIVE_KINDS)
        kind_of = np.array([kinds.index(KIND_OF_NAME.get(name, kinds[0])) for name in self.names] or [0], np.int8)
        return {
            "process_set": number("process_set", 0).astype(np.int32),
            "seq": number("seq", -1),
            "kind": (kind_of[events.name[batches]], kinds),
            "op": text("op"),
            "dtype": text("dtype"),
            "algorithm": text("algorithm"),
            "nbytes": number("bytes", -1),
            "tensors": number("tensors", 1).astype(np.int32),
            "submitted_ns": self._times_at("submitted", keys),
            "negotiated_ns": self._times_at("negotiated", keys),
            "start_ns": starts,
            "dur_ns": lengths,
            "copy_ns": copies,
            "caller": callers,
            "blocking": blocking_at(callers[0], number("blocking", -1)),
            "where": text("where"),
        }

    def _make_messages(self, rows: np.ndarray, durations: np.ndarray, args_of: np.ndarray) -> Table:
        names = [self.names[number] for number in self.events.name[rows].tolist()]
        keys = args_of[rows].tolist()
        submitted = self._times_at("submitted", keys)
        return make_messages(names, self.events.start[rows], durations[rows], self._numbers_at(keys), submitted)

    def _numbers_at(self, rows: list[int]) -> Callable[[str, int], np.ndarray]:
        """Reads an integer out of the args of `rows`."""
        chosen = np.array(rows, np.int64)
        return lambda key, default: self.events.keys[key].numbers_of(chosen, default)

    def _times_at(self, key: str, rows: list[int]) -> np.ndarray:
        texts = self.events.keys[key].texts_of(np.array(rows, np.int64))
        return np.array([nanoseconds(text) for text in texts], np.int64)

    def _tell_arrivals(self, keys: list[int]) -> None:
        """The first rank of a process set tells when each of its ranks arrived, in the order of the set's ranks."""
        told, members = self.events.keys["arrivals"], self.events.keys["ranks"]
        for row, key in enumerate(keys):
            text = told.text_of(key)
            if not text:
                continue
            times, ranks = _list_of(text), _list_of(members.text_of(key, "[]"))
            for position, arrival in enumerate(times):
                rank = integer(ranks[position], position) if position < len(ranks) else position
                if isinstance(arrival, (int, float)):
                    self.told_arrivals.append((row, rank, nanoseconds(repr(arrival))))


def _category_of(name: str) -> Category:
    if name.startswith(NEGOTIATE_PREFIX):
        return Category.NEGOTIATE
    return Category.QUEUE if name == QUEUE else Category.COLLECTIVE


def _list_of(text: str) -> list[Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []
