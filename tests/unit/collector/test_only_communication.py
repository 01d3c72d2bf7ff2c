"""Horovod's own timelines: what they show is said, what they do not show is said to be unknown."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tlkit.collector import Analysis, analyze

TENSORS = ("a", "b", "c")


def timeline(
    folder: Path,
    *,
    steps: int = 40,
    step_us: int = 100_000,
    waits_us: Sequence[int] = (50_000,),
    moves_us: int = 3_000,
    late_rank: int | None = None,
    answer_us: int = 0,
    cycle_us: int = 0,
    hangs: bool = False,
) -> Path:
    """A file as Horovod writes it: three tensors a step, each one collective of 1 MB.

    Args:
        waits_us: how long tensors wait for the last rank, step by step, over and over.
        moves_us: how long each collective takes.
        late_rank: it has ticks, and this rank's are last.
        answer_us: how long after the last tick a negotiation ends.
        cycle_us: marks of cycles so far apart.
        hangs: the last step's tensors are asked for by the first rank alone.
    """
    events: list[dict[str, object]] = [
        {
            "name": "process_name",
            "ph": "M",
            "pid": 0,
            "args": {"start_time_since_epoch_in_micros": 1_700_000_000_000_000},
        }
    ]
    events += [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"allreduce.{name}"}}
        for pid, name in enumerate(TENSORS, start=1)
    ]
    for step in range(steps):
        begin = 1_000_000 + step * step_us
        asked = begin + waits_us[step % len(waits_us)]
        for number in range(len(TENSORS)):
            pid = number + 1
            events.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": begin + 1_100 * number, "pid": pid})
            if late_rank is not None:
                events.append(
                    {"ph": "X", "name": str(1 - late_rank), "ts": begin + 1_100 * number, "pid": pid, "dur": 0}
                )
            if hangs and step == steps - 1:
                continue
            at = asked + 1_100 * number
            if late_rank is not None:
                events.append({"ph": "X", "name": str(late_rank), "ts": at, "pid": pid, "dur": 0})
            end = at + answer_us
            events.append({"ph": "E", "ts": end, "pid": pid})
        for number in range(0 if hangs and step == steps - 1 else len(TENSORS)):
            pid, start = number + 1, asked + answer_us + 3_300 + number * (moves_us + 10)
            events += [
                {"ph": "B", "name": "ALLREDUCE", "ts": start, "pid": pid},
                {"ph": "B", "name": "GLOO_ALLREDUCE", "ts": start + 1, "pid": pid},
                {"ph": "E", "ts": start + moves_us - 1, "pid": pid},
                {"ph": "E", "ts": start + moves_us, "pid": pid, "args": {"dtype": "float32", "shape": "[262144]"}},
            ]
    if cycle_us:
        last = 1_000_000 + steps * step_us
        events += [{"ph": "i", "name": "CYCLE_START", "ts": at, "s": "g"} for at in range(1_000_000, last, cycle_us)]
    if hangs:
        events.append({"ph": "i", "name": "CYCLE_START", "ts": 1_000_000 + steps * step_us + 60_000_000, "s": "g"})
    (folder / "h.json").write_text(json.dumps(events))
    return folder / "h.json"


def verdict_of(path: Path) -> tuple[str, str, tuple[int, ...]]:
    verdict = analyze(path).verdict
    return verdict.class_, verdict.cause, verdict.ranks


def check_doubt(analysis: Analysis) -> None:
    """No gain assumes that everything is exposed, or is promised with more than even confidence."""
    for finding in analysis.findings:
        low, high = finding.gain_interval
        assert finding.confidence <= 0.5
        assert low <= finding.predicted_gain <= high


@pytest.mark.parametrize("late_rank", [0, 1])
def test_ticks_name_the_late_rank(late_rank: int, tmp_path: Path) -> None:
    """Half of the step every tensor waits for it."""
    analysis = analyze(timeline(tmp_path, late_rank=late_rank))

    assert (analysis.verdict.class_, analysis.verdict.cause, analysis.verdict.ranks) == (
        "straggler",
        "late-rank",
        (late_rank,),
    )
    assert "the most that can be gained" in analysis.verdict.sentence
    check_doubt(analysis)


def test_without_ticks_some_rank_is_late(tmp_path: Path) -> None:
    """The negotiations are as long, and nobody has a name."""
    analysis = analyze(timeline(tmp_path))

    assert verdict_of(tmp_path / "h.json") == ("straggler", "late-rank", ())
    assert "Some rank asks for its tensors about 50.0 ms after another" in analysis.verdict.sentence
    assert "HOROVOD_CACHE_CAPACITY=0" in analysis.verdict.remedy
    check_doubt(analysis)


def test_waits_that_change_from_step_to_step_are_no_late_rank(tmp_path: Path) -> None:
    """In a third of the steps nobody is late: that tensors wait is said, and that the reason is unknown."""
    analysis = analyze(timeline(tmp_path, waits_us=(2_000, 55_000, 70_000)))

    assert verdict_of(tmp_path / "h.json") == ("unknown", "waiting-for-ranks", ())
    assert "tensors wait until the last rank has asked for them" in analysis.verdict.sentence


def test_late_steps_are_counted(tmp_path: Path) -> None:
    """Every tenth step a rank is late."""
    waits = (1_000,) * 9 + (80_000,)
    analysis = analyze(timeline(tmp_path, steps=61, step_us=110_000, waits_us=waits, moves_us=500))
    (finding,) = [finding for finding in analysis.findings if finding.cause == "late-in-some-steps"]

    assert "In 6 of 59 steps" in finding.sentence or "In 5 of 59 steps" in finding.sentence
    check_doubt(analysis)


def test_marks_of_a_long_cycle_blame_the_cycle(tmp_path: Path) -> None:
    """Every 50 ms the background thread looks: no rank is late."""
    analysis = analyze(timeline(tmp_path, cycle_us=50_000))

    assert verdict_of(tmp_path / "h.json") == ("communication", "long-cycle", ())
    assert "HOROVOD_CYCLE_TIME" in analysis.verdict.remedy
    assert all(finding.cause != "late-rank" for finding in analysis.findings)
    check_doubt(analysis)


def test_short_cycles_are_not_blamed(tmp_path: Path) -> None:
    """The same waits with a mark every millisecond are a rank's."""
    assert verdict_of(timeline(tmp_path, cycle_us=1_000)) == ("straggler", "late-rank", ())


def test_an_answer_that_comes_late_is_no_late_rank(tmp_path: Path) -> None:
    """All ranks have asked, and the negotiation goes on for 40 ms."""
    verdict = analyze(timeline(tmp_path, waits_us=(100,), late_rank=1, answer_us=40_000)).verdict

    assert (verdict.class_, verdict.cause) == ("communication", "long-cycle")
    assert "All ranks have asked for a tensor 40.0 ms before" in verdict.sentence


def test_time_without_communication_is_unknown(tmp_path: Path) -> None:
    """Nine tenths of the step nothing is under way."""
    verdict = analyze(timeline(tmp_path, waits_us=(100,), moves_us=1_000)).verdict

    assert (verdict.class_, verdict.cause) == ("unknown", "time-outside-communication")
    assert "tl-run" in verdict.remedy


def test_bytes_that_move_after_the_last_request_are_exposed(tmp_path: Path) -> None:
    """Three collectives of 28 ms a step, with nothing left to compute."""
    analysis = analyze(timeline(tmp_path, waits_us=(1_000,), moves_us=28_000))

    assert verdict_of(tmp_path / "h.json") == ("communication", "bandwidth-bound", ())
    assert "at most" in analysis.verdict.sentence
    assert analysis.verdict.predicted_gain == pytest.approx(0.42, abs=0.01)
    check_doubt(analysis)


def test_a_few_rounds_are_no_training(tmp_path: Path) -> None:
    """Four calls of the same three tensors."""
    analysis = analyze(timeline(tmp_path, steps=5))

    assert (analysis.verdict.class_, analysis.verdict.cause) == ("unknown", "no-steps")
    assert analysis.findings == ()


def test_a_file_that_ends_in_negotiations_is_of_a_run_that_hung(tmp_path: Path) -> None:
    """Rank 0 asked, and for a minute nobody else did."""
    analysis = analyze(timeline(tmp_path, late_rank=1, hangs=True))
    condition = analysis.condition

    assert (condition.ending, condition.blamed_ranks) == ("hung", (1,))
    assert analysis.verdict.sentence.startswith(condition.sentences()[0])
    assert "which rank 1 never asked for" in analysis.verdict.sentence


@pytest.mark.parametrize(
    ("name", "class_", "cause", "ranks"),
    [
        ("bn_comm_fatfc_np2", "communication", "oversize-gradient", ()),
        ("bn_slowdata_all60ms_cnn_np2", "unknown", "time-outside-communication", ()),
        ("bn_straggler_r1_fwd50ms_cnn_np2", "straggler", "late-rank", ()),
        ("bn_straggler_r1_fwd50ms_cnn_np2_nocache", "straggler", "late-rank", (1,)),
        ("bn_tiny_nofusion_np2", "communication", "many-small-collectives", ()),
        ("cnn_np2_cycles", "unknown", "waiting-for-ranks", ()),
        ("cnn_np2_fusion0", "communication", "many-small-collectives", ()),
        ("cnn_np2_nocache", "unknown", "waiting-for-ranks", ()),
        ("kill_rank1_step20_cnn_np2", "unknown", "waiting-for-ranks", ()),
        ("ops_np2", "unknown", "no-steps", ()),
        ("ops_np4_cycles_nocache", "unknown", "no-steps", ()),
        ("public_tf_mpi_cycles_2019", "straggler", "late-rank", (0,)),
        ("transformer_np2_cycles", "unknown", "waiting-for-ranks", ()),
    ],
)
def test_real_horovod_timelines(
    name: str, class_: str, cause: str, ranks: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    """Every file says what tensors wait for, promises with doubt, and claims no clean end."""
    # One file is another project's.
    folder: Path = request.getfixturevalue("shared_traces" if name.startswith("public") else "own_traces")
    analysis = analyze(folder / "horovod" / f"{name}.json.gz")
    verdict = analysis.verdict

    assert (verdict.class_, verdict.cause, verdict.ranks) == (class_, cause, ranks), verdict.sentence
    assert cause == "no-steps" or "wait" in verdict.sentence
    assert any("no mark for a clean end" in note for note in analysis.notes)
    check_doubt(analysis)
