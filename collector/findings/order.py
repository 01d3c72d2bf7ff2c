"""Which finding comes first: the one with the largest gain, but what departs from the usual before what the run is made of.

Several changes help against the same communication: without the barriers, with another transport, or with a smaller model.  A
departure (a slow link, calls that somebody added, slow agreement) is what a reader looks for; that the model has large
tensors, or that there is a quicker transport, holds for a healthy run, too.  So a rule on communication may say that its gain
counts less (`Finding.order_gain`), and a finding with a larger gain then comes right behind the one that counts more.
"""

from collections.abc import Sequence

from .base import Finding


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Largest gain first; among those on communication, what counts most (module docstring)."""
    communication = sorted((one for one in findings if one.class_ == "communication"), key=_counts, reverse=True)
    keys: dict[int, float] = {}
    most = float("inf")
    for finding in communication:
        most = min(most, finding.predicted_gain)
        keys[id(finding)] = most
    others = [finding for finding in findings if finding.class_ != "communication"]
    return sorted([*communication, *others], key=lambda one: -keys.get(id(one), one.predicted_gain))


def _counts(finding: Finding) -> float:
    return finding.predicted_gain if finding.order_gain is None else finding.order_gain
