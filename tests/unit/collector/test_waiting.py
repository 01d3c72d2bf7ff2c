"""Who waits for whom, and how long."""

from pathlib import Path

import pytest

from tlkit.collector.analysis import analyze
from tlkit.collector.model.waiting import waits_for

SAMPLES = Path(__file__).parents[3] / "samples" / "traces"


@pytest.mark.parametrize("name", ["no-fusion", "huge-gradient"])
def test_nobody_waits_longer_than_a_step_takes(name: str) -> None:
    """Without fusion dozens of tensors are waited for at the same time: that was counted dozens of times."""
    facts = analyze(SAMPLES / name).facts
    waits = waits_for(facts)
    table = facts.in_steps(facts.collectives)
    table = table[table["seq"] >= 0].set_index(["process_set", "seq"])

    assert len(waits)
    for waiter, culprit, mean_ns, _ratio in waits.itertuples(index=False):
        mine, other = table[table["rank"] == waiter], table[table["rank"] == culprit]
        asked = mine["submitted_ns"].to_frame("asked").join(other["submitted_ns"].to_frame("last"))
        covered, until = 0, 0
        for begin, end in sorted(asked.itertuples(index=False, name=None)):
            covered += max(end - max(begin, until), 0)
            until = max(until, end)
        assert mean_ns == pytest.approx(covered / facts.steps.count)
        assert mean_ns < facts.mean_step_ns
