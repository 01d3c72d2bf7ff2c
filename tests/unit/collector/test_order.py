"""Which of several findings comes first."""

from tests.traces import make_trace
from tlkit.collector import Analysis, analyze
from tlkit.collector.findings.base import Finding
from tlkit.collector.findings.order import in_order
from tlkit.collector.findings.plan import make_plan

from .test_diagnosis import changed, jittered
from .test_rules import metered


def finding(cause: str, gain: float, *, class_: str = "communication", counts: float | None = None) -> Finding:
    return Finding(
        class_=class_,
        cause=cause,
        ranks=(0, 1),
        predicted_gain=gain,
        gain_interval=(gain, gain),
        confidence=1.0,
        remedy="",
        sentence="",
        order_gain=counts,
    )


def causes(*findings: Finding) -> list[str]:
    return [one.cause for one in in_order(findings)]


def test_the_largest_gain_comes_first() -> None:
    assert causes(finding("a", 0.1, class_="data"), finding("b", 0.3), finding("c", 0.2, class_="compute")) == [
        "b",
        "c",
        "a",
    ]


def test_a_fault_of_another_class_comes_before_what_counts_less() -> None:
    """But neither the machine's load nor what says only when."""
    model, bytes_ = finding("oversize-gradient", 0.38, counts=0.19), finding("bandwidth-bound", 0.38, counts=0.19)
    slow = finding("slow-forward", 0.3, class_="straggler")

    assert causes(model, finding("host-code", 0.2, class_="compute")) == ["host-code", "oversize-gradient"]
    assert causes(model, finding("host-code", 0.18, class_="compute")) == ["oversize-gradient", "host-code"]
    large = finding("oversize-gradient", 0.45, counts=0.1)
    assert causes(large, finding("host-code", 0.13, class_="compute")) == ["oversize-gradient", "host-code"]
    for cause in ("starved-of-cores", "slow-stretch"):
        assert causes(model, finding(cause, 0.3, class_="compute")) == ["oversize-gradient", cause]
    assert causes(finding("slow-link", 0.4), model, slow) == ["slow-link", "slow-forward", "oversize-gradient"]
    assert causes(bytes_, slow) == ["bandwidth-bound", "slow-forward"]


def test_a_departure_comes_before_what_the_model_is_made_of() -> None:
    """Unless that gains far more."""
    barriers = finding("barriers", 0.16)

    assert causes(finding("oversize-gradient", 0.3, counts=0.15), barriers) == ["barriers", "oversize-gradient"]
    assert causes(finding("oversize-gradient", 0.6, counts=0.3), barriers) == ["oversize-gradient", "barriers"]


def test_what_is_put_back_does_not_lift_the_departure_above_other_classes() -> None:
    """The transport would gain most, the straggler more than the barriers, which only the transport gives way to."""
    found = causes(
        finding("wrong-backend", 0.5, counts=0.12),
        finding("slow-forward", 0.4, class_="straggler"),
        finding("barriers", 0.2),
    )

    assert found == ["slow-forward", "barriers", "wrong-backend"]


def on_a_loaded_machine(more_ms: float) -> Analysis:
    """Four fifths of every phase go to waiting for a core; rank 1 sleeps in forward besides."""
    steps = jittered(changed(2, 30, [1], forward=more_ms))
    lacking = {
        (f"{part} starved_ns", rank): lambda parts, part=part, rank=rank: (
            0.8 * (parts.get(part, 0) - (more_ms if (part, rank) == ("forward", 1) else 0))
        )
        for part in ("forward", "backward", "optimizer")
        for rank in (0, 1)
    }
    running = {
        (f"{part} cpu_ns", rank): lambda parts, part=part, rank=rank: (
            0.2 * (parts.get(part, 0) - (more_ms if (part, rank) == ("forward", 1) else 0))
        )
        for part in ("forward", "backward", "optimizer")
        for rank in (0, 1)
    }
    return analyze(metered(steps, make_trace(steps), lacking | running))


def test_a_rank_that_is_slow_comes_before_the_load_of_its_machine() -> None:
    """It would be slow on a free machine, too; to free the machine would gain more, which is said second."""
    analysis = on_a_loaded_machine(20)

    assert [(one.cause, one.ranks) for one in analysis.findings[:2]] == [
        ("slow-forward", (1,)),
        ("starved-of-cores", (0, 1)),
    ]
    assert analysis.findings[1].predicted_gain > 2 * analysis.findings[0].predicted_gain
    assert analysis.findings[0].evidence["root_cause"]["is"] == "blocked"
    assert "Besides, the machine is loaded: In each" in analysis.verdict.sentence


def test_the_load_comes_first_where_nothing_is_left_without_it() -> None:
    """Two of a hundred milliseconds are not worth a change."""
    analysis = on_a_loaded_machine(2)

    assert analysis.verdict.cause == "starved-of-cores"


def test_what_two_rules_say_alike_is_said_once() -> None:
    """The larger gain of the two; another class or cause is another finding."""
    facts = on_a_loaded_machine(0).facts
    findings, _ = make_plan(
        facts, [finding("a", 0.2), finding("a", 0.3), finding("a", 0.1, class_="data"), finding("b", 0.1)]
    )

    assert [(one.class_, one.cause, one.predicted_gain) for one in findings] == [
        ("communication", "a", 0.3),
        ("communication", "b", 0.1),
        ("data", "a", 0.1),
    ]
