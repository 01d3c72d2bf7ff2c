"""What tl-tune and the ranks of its trials write for each other."""

from pathlib import Path

import msgspec
import pytest

from tlkit.timeline.errors import UsageError
from tlkit.timeline.trials import (
    Block,
    RankTrial,
    Seen,
    TrialPlan,
    decode_plan,
    encode_plan,
    format_settings,
    parse_settings,
    read_trials,
    trial_path,
)

SEEN = Seen(
    runtime="hvd", transport="gloo", device="cpu", local_size=2, hosts=1, cores=2, threads=1,
    fusion_threshold_nbytes=1, cycle_time_ms=1.0, lays_out=True, loaders=[], optimizer="SGD", fused=False, ddp=False,
    bucket_view=False, bucket_cap_mb=25.0, compression=False,
)  # fmt: skip


def test_settings_go_through_a_variable_unchanged() -> None:
    """In any spacing; nothing is nothing."""
    settings = parse_settings(" loader.workers=2 , torch.threads = 1,cpu.binding=ranks,")

    assert settings == {"loader.workers": "2", "torch.threads": "1", "cpu.binding": "ranks"}
    assert parse_settings(format_settings(settings)) == settings
    assert parse_settings("") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("loader.worker=2", "loader.worker is not a setting"),
        ("loader.workers=-1", "at least 0"),
        ("loader.workers=²", "at least 0"),
        ("torch.threads=0", "at least 1"),
        ("torch.threads", "at least 1"),
        ("optimizer.fused=yes", "0 or 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text: str, said: str) -> None:
    """With the name and what would do."""
    with pytest.raises(UsageError, match=said):
        parse_settings(text)


def test_a_plan_goes_through_a_variable_unchanged() -> None:
    """And anything else in it is refused."""
    plan = TrialPlan(folder="/tmp/x", steps=30, seed=1, blocks=[Block(5), Block(8, {"torch.threads": "1"})])

    assert decode_plan(encode_plan(plan)) == plan
    for text in ("", "yes", "{}", '{"folder": 1, "steps": 2}'):
        with pytest.raises(UsageError, match="TLKIT_TRIAL is set by tl-tune"):
            decode_plan(text)


def test_answers_are_read_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    """Files that are no answers, or not whole, are left out."""
    for rank in (10, 2, 0):
        answer = RankTrial(rank=rank, size=11, begun_ns=0, ends_ns=[1], losses=[None], seen=SEEN, ended_itself=True)
        trial_path(tmp_path, rank).write_bytes(msgspec.json.encode(answer))
    trial_path(tmp_path, 3).write_text('{"rank": 3')
    trial_path(tmp_path, 4).write_text('{"rank": "four"}')

    assert [trial.rank for trial in read_trials(tmp_path)] == [0, 2, 10]
    assert read_trials(tmp_path / "nowhere") == []
