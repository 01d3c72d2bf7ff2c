"""The table of spans, against pandas."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tlkit.dashboard.timeline import table
from tlkit.dashboard.timeline.table import ORDERS, Question, Table
from tlkit.timeline.errors import UsageError

from .runs import MS, STEP_MS, run_of, slow_rank

RUN = run_of(slow_rank())


@settings(max_examples=examples(40))
@given(
    st.sampled_from(ORDERS),
    st.booleans(),
    st.sampled_from(["", "forward", "nothing"]),
    st.sampled_from([None, 0, 1]),
    st.sampled_from([None, 3]),
    st.integers(0, 30),
)
def test_a_page_is_a_part_of_the_sorted_table(
    order: str, descending: bool, wanted: str, rank: int | None, step: int | None, offset: int
) -> None:
    """Filtered by text, rank and step; counted by rank; in the order asked for, without gaps between pages."""
    question = Question(wanted=wanted, rank=rank, step=step, order=order, descending=descending)
    spans = RUN.trace.spans
    chosen = np.ones(len(spans), dtype=bool)
    if wanted:
        chosen &= spans["name"].astype(str).str.lower().str.contains(wanted).to_numpy()
    if rank is not None:
        chosen &= (spans["rank"] == rank).to_numpy()
    if step is not None:
        start, end = spans["start_ns"].to_numpy(), (spans["start_ns"] + spans["dur_ns"]).to_numpy()
        chosen &= (end > step * STEP_MS * MS) & (start < (step + 1) * STEP_MS * MS)
    everything = Table(RUN).page(question, 0, 500)
    page = Table(RUN).page(question, offset, 7)

    assert sorted(everything.spans.tolist()) == np.flatnonzero(chosen).tolist()
    assert page.count == everything.count == int(chosen.sum())
    assert page.spans.tolist() == everything.spans.tolist()[offset : offset + 7]
    assert sum(page.by_rank.values()) == page.count
    name = {"start": "start_ns", "duration": "dur_ns", "exposed": "exposed_ns"}.get(order, order)
    described = Table(RUN).describe(everything.spans)
    keys = [row[name] if name != "name" else row["name"].rstrip(" 0123456789") for row in described]
    keys = [key.lower() if isinstance(key, str) else key for key in keys]
    assert keys == sorted(keys, reverse=descending)


def test_of_many_only_what_is_shown_is_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same page comes out of a partition as of a full sort."""
    question = Question(order="duration", descending=True)
    RUN.kept.clear()
    full = Table(RUN).page(question, 0, 500).spans
    RUN.kept.clear()
    monkeypatch.setattr(table, "MAX_PAGE", 5)
    few = Table(RUN).page(question, 0, 5).spans
    lengths = RUN.trace.spans["dur_ns"].to_numpy()

    assert lengths[few].tolist() == lengths[full[:5]].tolist()
    RUN.kept.clear()


def test_exposed_is_how_long_the_rank_waited_meanwhile() -> None:
    """All 30 ms of the negotiation of rank 0; nothing for what is no communication."""
    rows = Table(RUN).describe(Table(RUN).page(Question(step=2, order="exposed", descending=True), 0, 3).spans)

    assert (rows[0]["name"], rows[0]["rank"], rows[0]["exposed_ns"]) == ("NEGOTIATE", 0, 30 * MS)
    forward = Table(RUN).describe(Table(RUN).page(Question(wanted="FORWARD", step=2), 0, 5).spans)
    assert {row["exposed_ns"] for row in forward} == {0}


def test_what_makes_no_sense_is_refused() -> None:
    """Orders and pages that there are not."""
    with pytest.raises(UsageError, match="order has to be"):
        Table(RUN).page(Question(order="colour"), 0, 5)
    with pytest.raises(UsageError, match="offset is at most"):
        Table(RUN).page(Question(), 10**9, 5)
