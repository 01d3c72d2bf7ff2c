"""Operators of a profile that take milliseconds where microseconds are usual: who lacked a core, and for how long."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlkit.collector import analyze
from tlkit.collector.analysis import Analysis
from tlkit.collector.kept import load, store
from tlkit.collector.model.lost_cores import parents
from tlkit.timeline.vocabulary import Category

STEPS, OPERATORS = 40, 60
FORWARD, BACKWARD, UPDATE = 60.0, 120.0, 30.0
SLICE_US = 4000.0
#: How often an operator of a rank without a core is stopped.
STOPPED = 0.02


class Profile:
    """What torch.profiler would write of a rank: events one after the other, in microseconds."""

    def __init__(self, rank: int, stopped: float, longer: np.ndarray) -> None:
        self.rank, self.stopped, self.longer = rank, stopped, longer
        self.dice = np.random.default_rng(rank)
        self.now = 1000.0
        self.lost = dict.fromkeys(("forward", "backward", "optimizer"), 0.0)
        self.events: list[dict[str, Any]] = []

    def add(self, name: str, start: float, *, category: str = "cpu_op", thread: int = 1) -> None:
        """An event that ends now."""
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 10 + self.rank, "tid": thread, "ts": start}
            | {"dur": self.now - start, "args": {}}
        )

    def run(self, name: str, usual: float, part: str) -> None:
        """An operator, with one inside that takes most of it."""
        start, stop = self.now, SLICE_US * (self.dice.random() < self.stopped)
        self.lost[part] += stop
        inner = self.now = self.now + 2.0
        self.now += usual * float(self.dice.uniform(0.9, 1.3)) + stop
        self.add(f"aten::{name.lower()}", inner)
        self.now += 2.0
        self.add(name, start)

    def step(self, number: int, begin: float) -> float:
        """One step; returns when it is over."""
        self.now = begin
        for _ in range(OPERATORS):
            self.run("aten::linear", FORWARD * self.longer[number], "forward")
        for _ in range(OPERATORS):
            self.run("autograd::engine::evaluate_function: AddmmBackward0", BACKWARD * self.longer[number], "backward")
        update = self.now
        for _ in range(OPERATORS):
            self.run("aten::add_", UPDATE, "optimizer")
        self.add("Optimizer.step#SGD.step", update, category="user_annotation")
        return self.now

    def write(self, folder: Path) -> None:
        """The file."""
        about = {"backend": "gloo", "rank": self.rank, "world_size": 2}
        events = {"traceEvents": self.events, "distributedInfo": about, "baseTimeNanoseconds": 0}
        (folder / f"rank{self.rank}.pt.trace.json").write_text(json.dumps(events), encoding="utf-8")


def record(folder: Path, stopped: tuple[float, float], longer: np.ndarray) -> tuple[Analysis, list[Profile]]:
    """Two ranks that reduce their gradients at the end of each step, which takes both 200 us once the later one has come."""
    profiles = [Profile(rank, share, longer) for rank, share in enumerate(stopped)]
    begins = [1000.0, 1000.0]
    for number in range(STEPS):
        ends = [profile.step(number, begin) for profile, begin in zip(profiles, begins, strict=True)]
        over = max(ends) + 200
        for profile, begin, end in zip(profiles, begins, ends, strict=True):
            profile.now = over
            profile.add("gloo:all_reduce", end, category="user_annotation", thread=2)
            profile.add(f"ProfilerStep#{number}", begin, category="user_annotation")
        begins = [over + 50.0] * 2
    for profile in profiles:
        profile.write(folder)
    return analyze(folder), profiles


def lost_ms(analysis: Analysis, part: str) -> np.ndarray:
    """By rank, over the analysed steps."""
    per_rank: np.ndarray = analysis.facts.cpu.starved_ns[part].sum(axis=1) / 1e6
    return per_rank


@pytest.mark.parametrize("part", ["forward", "backward", "optimizer"])
def test_what_operators_lose_is_counted_by_part(part: str, tmp_path: Path) -> None:
    analysis, profiles = record(tmp_path, (0.0, STOPPED), np.ones(STEPS))
    share = analysis.facts.steps.count / STEPS

    assert analysis.facts.cpu.is_estimated
    assert lost_ms(analysis, part)[0] == 0
    assert lost_ms(analysis, part)[1] == pytest.approx(profiles[1].lost[part] / 1000 * share, rel=0.3)


def test_a_rank_without_cores_is_told_from_one_that_computes_more(tmp_path: Path) -> None:
    analysis, _ = record(tmp_path, (0.0, STOPPED), np.ones(STEPS))

    assert (analysis.verdict.class_, analysis.verdict.ranks) == ("straggler", (1,))
    assert analysis.verdict.evidence["root_cause"]["is"] == "starved-of-cores"


def test_where_all_ranks_lack_cores_it_is_the_machine(tmp_path: Path) -> None:
    """Which of them is held up in a step is chance."""
    analysis, _ = record(tmp_path, (STOPPED, STOPPED), np.ones(STEPS))

    assert (analysis.verdict.class_, analysis.verdict.cause) == ("compute", "starved-of-cores")
    assert "estimated" in analysis.verdict.sentence


def test_longer_sequences_are_no_lack_of_cores(tmp_path: Path) -> None:
    """All operators of a step take more then."""
    longer = np.where(np.arange(STEPS) % 4 == 1, 20.0, 1.0)
    analysis, _ = record(tmp_path, (0.0, 0.0), longer)

    for part in (Category.FORWARD, Category.BACKWARD):
        assert lost_ms(analysis, str(part)).tolist() == [0, 0]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=40))
def test_the_innermost_of_those_around_is_found(rows: list[tuple[int, int, int]]) -> None:
    spans: list[tuple[int, int, int]] = []
    for lane, start, length in sorted(rows, key=lambda row: (row[0], row[1], -row[2])):
        around = [end for thread, begin, end in spans if thread == lane and begin <= start < end]
        spans.append((lane, start, min([start + length, *around])))
    lanes, starts, ends = (np.array([span[column] for span in spans], dtype=np.int64) for column in range(3))
    found = parents(lanes, starts, ends)

    for row, (lane, start, end) in enumerate(spans):
        inside = [
            other
            for other, (thread, begin, last) in enumerate(spans[:row])
            if thread == lane and begin <= start and end <= last
        ]
        assert found[row] == (inside[-1] if inside else -1)


def test_a_kept_analysis_knows_what_the_first_one_did(tmp_path: Path) -> None:
    """The trace is not kept with it, and tells nothing of cores."""
    analysis, _ = record(tmp_path, (STOPPED, STOPPED), np.ones(STEPS))
    store(tmp_path, "kept", analysis)
    kept = load(tmp_path, "kept", analysis.trace)

    assert kept is not None
    assert kept.facts.host_load is not None
    assert kept.facts.host_load.lacks_cores
    assert kept.facts.host_load == analysis.facts.host_load
