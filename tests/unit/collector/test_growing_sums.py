"""Shards of sums that grow: whatever comes, they are read as if from the beginning, but only what has come is read."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlkit.collector.service import growing_sums
from tlkit.collector.service.growing_sums import GrowingSums
from tlkit.timeline import open_trace
from tlkit.timeline.errors import TlkitError
from tlkit.timeline.formats.tlkit import scan_shards
from tlkit.timeline.formats.tlkit_shard import Shard
from tlkit.timeline.model.trace import Trace
from tlkit.timeline.read.source import Source
from tlkit.timeline.record.sampled_format import NO_STEP, SampledFormat
from tlkit.timeline.record.shard_format import ShardClock, ShardHeader

NEWEST = 4
STEP_NS = 10_000_000
CLOCK = '{"name":"tlkit_clock","ph":"M","pid":1,"tid":0,"ts":20000.0,"args":{"offset_ns":5000,"uncertainty_ns":100}},\n'
COUNTER = '{"name":"GPU","ph":"C","pid":1,"tid":0,"ts":20000.0,"args":{"value":3}},\n'
OPEN = '{"name":"BARRIER","cat":"other","ph":"B","pid":1,"tid":1,"ts":20000.0},\n'
SPAN = '{"name":"FORWARD","cat":"forward","ph":"X","pid":1,"tid":1,"ts":20000.0,"dur":5.0},\n'
BROKEN = '{"name":"tlkit_steps","ph":"M","pid":1,"tid":0,"ts":2,"args":{"first":1,"parts":["data"],"us":[[1,"x"]]}},\n'
CUT = '{"name":"tlkit_steps","ph":"M","pid":1,"ti\n'
WITHOUT_STEPS = '{"name":"tlkit_steps","ph":"M","pid":1,"tid":0,"ts":2,"args":{"first":1}},\n'


class Rank:
    """A shard that grows."""

    def __init__(self, folder: Path, rank: int, run_id: str = "ab" * 8) -> None:
        self.path = folder / f"t.rank{rank}.json"
        self.rank, self.number = rank, 0
        header = ShardHeader(
            run_id=run_id, rank=rank, size=4, local_rank=rank, host="h", boot_id="b", process_id=rank, device="cpu",
            clock=ShardClock(origin_ns=0, origin_unix_ns=0),
        )  # fmt: skip
        self.form = SampledFormat(header, NO_STEP, clock=lambda: 0.0)
        self.path.write_text("[\n" + "".join(self.form.head()))

    def line(self, steps: int) -> str:
        """The event of more steps."""
        for number in range(self.number, self.number + steps):
            at_ns = number * STEP_NS
            forward_ns = (3 + self.rank + number % 5) * 100_000
            self.form.span("FORWARD", "forward", 1, at_ns, at_ns + forward_ns, None)
            self.form.span("SYNCHRONIZE", "other", 1, at_ns + forward_ns, at_ns + STEP_NS - 1_000_000, None)
            self.form.span("STEP", "step", 0, at_ns, at_ns + STEP_NS, {"step": number})
        self.number += steps
        return self.form.pending()

    def add(self, text: str) -> None:
        """The file grows."""
        with self.path.open("a") as file:
            file.write(text)


def sizes_of(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in sorted(folder.iterdir())}


def newest_steps(trace: Trace) -> pd.DataFrame:
    """The newest steps that all ranks have, with their parts, as late as they are behind the first of them."""
    last = int(trace.sums.groupby("rank")["step"].max().min())
    found = trace.sums[trace.sums["step"].between(last + 1 - NEWEST, last)].reset_index(drop=True)
    first_ns = int(found["start_ns"].min())
    return found.assign(start_ns=found["start_ns"] - first_ns, end_ns=found["end_ns"] - first_ns)


CHANGES = st.sampled_from(
    ["sums", "sums", "sums", "many", "half", CLOCK, COUNTER, OPEN, SPAN, BROKEN, CUT, WITHOUT_STEPS, "\n", "new run", "late", "empty"]
)  # fmt: skip


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 2), CHANGES), max_size=6))
def test_what_has_grown_is_read_as_if_from_the_beginning(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, str]]
) -> None:
    """Sums, other events and damage, half a line, a file that was begun again, a rank that comes late."""
    folder = tmp_path_factory.mktemp("run")
    ranks = {number: Rank(folder, number) for number in range(3)}
    for rank in ranks.values():
        rank.add(rank.line(3))
    growing = GrowingSums(NEWEST)
    growing.read(sizes_of(folder))
    half: dict[int, str] = {}
    for number, change in changes:
        rank = ranks[number]
        rank.add(half.pop(number, ""))
        if change == "late":
            ranks.setdefault(3, Rank(folder, 3)).add(ranks[3].line(2))
        elif change in {"new run", "empty"}:
            ranks[number] = Rank(folder, number)
            ranks[number].add(ranks[number].line(30 if change == "new run" else 0))
        elif change in {"sums", "many", "half"}:
            line = rank.line(9 if change == "many" else 2)
            middle = len(line) // 2 if change == "half" else len(line)
            rank.add(line[:middle])
            half[number] = line[middle:]
        else:
            rank.add(change)
        try:
            whole = open_trace(sorted(folder.iterdir()), use_cache=False)
        except TlkitError as error:
            with pytest.raises(type(error)):
                growing.read(sizes_of(folder))
            continue
        trace = growing.read(sizes_of(folder))

        assert trace is not None
        trace.check()
        assert trace.meta.ranks == whole.meta.ranks
        assert trace.meta.clock == whole.meta.clock
        assert {rank: end.is_closed for rank, end in trace.meta.ends.items()} == {
            rank: end.is_closed for rank, end in whole.meta.ends.items()
        }
        lasts = whole.sums.groupby("rank")["step"].max()
        if lasts.max() - lasts.min() < 3 * NEWEST:  # of ranks that are further ahead those steps are kept no longer
            pd.testing.assert_frame_equal(newest_steps(trace), newest_steps(whole))


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many shards were read from the beginning, each time."""
    found: list[int] = []

    def counted(sources: Sequence[Source], progress: Callable[[int, int], None]) -> list[Shard]:
        found.append(len(sources))
        return scan_shards(sources, progress)

    monkeypatch.setattr(growing_sums, "scan_shards", counted)
    return found


def test_only_what_has_come_is_read(tmp_path: Path, scanned: list[int]) -> None:
    """Of sums; a shard in which something else has come is read from the beginning, the others not."""
    ranks = [Rank(tmp_path, number) for number in range(3)]
    growing = GrowingSums(NEWEST)
    for turn in range(5):
        for rank in ranks:
            rank.add(rank.line(2))
        if turn == 3:
            ranks[1].add(CLOCK)
        trace = growing.read(sizes_of(tmp_path))

        assert trace is not None
        assert set(trace.steps["step"]) == set(range(max(2 * turn - 2, 0), 2 * turn + 2))

    assert scanned == [3, 1]
    assert growing.is_cut


def test_what_is_kept_of_a_shard_has_a_limit(tmp_path: Path) -> None:
    """Also of one that tells the same step for ever."""
    rank = Rank(tmp_path, 0)
    line = rank.line(1)
    rank.add(line)
    growing = GrowingSums(NEWEST)
    for _ in range(100):
        rank.add(line * 10)
        growing.read(sizes_of(tmp_path))
    (known,) = growing._known.values()

    assert len(known.shard.told_sums) <= 4 * NEWEST


def test_shards_of_two_runs_are_not_read_as_one(tmp_path: Path) -> None:
    """Whoever opens them says which are left out."""
    for number, run_id in enumerate(("ab" * 8, "cd" * 8)):
        rank = Rank(tmp_path, number, run_id)
        rank.add(rank.line(3))

    assert GrowingSums(NEWEST).read(sizes_of(tmp_path)) is None


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.sampled_from(["", CLOCK, COUNTER, OPEN, BROKEN]), st.integers(0, 3)), min_size=2, max_size=5)
)
def test_shards_of_sums_together_are_what_they_are_alone(
    tmp_path_factory: pytest.TempPathFactory, told: list[tuple[str, int]]
) -> None:
    """With a clock that was read again, counters, a hang, damage; and one that tells no steps yet stands between them."""
    folder = tmp_path_factory.mktemp("run")
    for number, (line, steps) in enumerate([("", 3), *told]):
        rank = Rank(folder, number)
        rank.add(line + (rank.line(steps) if steps else ""))
    together = open_trace(folder, use_cache=False)
    for number, (_, steps) in enumerate([("", 3), *told]):
        alone = together.sums[together.sums["rank"] == number]

        assert len(alone) == steps
        assert len(together.steps[together.steps["rank"] == number]) == steps
        lengths_ns = (alone["end_ns"] - alone["start_ns"]).to_numpy()
        assert np.abs(lengths_ns - STEP_NS).max(initial=0) <= 1 + STEP_NS // 1000
        assert together.counters["name"][together.counters["rank"] == number].tolist() == ["GPU"] * (
            told[number - 1][0] == COUNTER if number else 0
        )
    assert together.steps["rank"].is_monotonic_increasing
    assert json.dumps(together.meta.dropped).count("sums_without_sense") == any(line == BROKEN for line, _ in told)
