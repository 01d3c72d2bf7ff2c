"""Traces as nvtxt; the real importer is in tests/integration/test_nsys.py."""

import io
import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.traces import make_trace, uniform
from tlkit.timeline.export.nvtxt import _nested, _quoted, write_nvtxt


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30))
def test_pushes_and_pops_match_and_never_go_back(spans: list[tuple[int, int]]) -> None:
    """Whatever overlaps: every push has its pop, in order of time, and what nests keeps its length."""
    start = np.array([begin for begin, _ in spans], np.int64)
    end = start + np.array([length for _, length in spans], np.int64)
    events = list(_nested(start, end))
    times = [at for at, _ in events]

    assert times == sorted(times)
    assert sorted(row for _, row in events if row >= 0) == list(range(len(spans)))
    depth = 0
    for _, row in events:
        depth += 1 if row >= 0 else -1
        assert depth >= 0
    assert depth == 0


def test_names_cannot_break_out() -> None:
    """Quotes, backslashes, newlines, a megabyte."""
    assert _quoted('a"b\\c\nd') == '"a\'b/c\N{REPLACEMENT CHARACTER}d"'
    assert len(_quoted("x" * 1_000_000)) < 300


def test_every_span_is_there_once_and_threads_have_names_of_their_own() -> None:
    """Two ranks, three steps."""
    trace = make_trace(uniform(2, 3, {"data": 1, "forward": 5, "wait:collective": 2, "optimizer": 1}))
    out = io.StringIO()
    write_nvtxt(trace, out)
    text = out.getvalue()

    assert text.count("\nRangePush,") == text.count("\nRangePop,") == len(trace.spans)
    threads = re.findall(r'^NameOsThread, (\d+), (\d+), "(.*)"$', text, re.MULTILINE)
    assert len({name for _, _, name in threads}) == len({number for _, number, _ in threads}) == len(threads)
    assert {process for process, _, _ in threads} == {"100", "101"}
