"""Which of several findings comes first."""

from tlkit.collector.findings.base import Finding
from tlkit.collector.findings.order import in_order


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
