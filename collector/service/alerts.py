"""Says it when a run comes to be as it must not be: to a web address, and by ending."""

import json
import logging
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from ...timeline.errors import UsageError
from ..analysis import Analysis
from ..compare.gate import check, parse_condition

_TIMEOUT_S: Final = 10.0
#: With fewer steps nothing is sure.
MIN_STEPS: Final = 10
#: So long the shards of some ranks may come later than those of others; until then, what the first ranks tell is half a run.
ARRIVAL_S: Final = 30.0

_log = logging.getLogger("tlkit.collector")


class Alerts:
    """Conditions (as of --fail-on) that are looked at with every new analysis.

    Each is told when it begins to hold, and again when it holds for a cause that was not told yet: whoever was told of the one
    would not know of the other.
    """

    def __init__(
        self,
        conditions: Sequence[str],
        webhook: str | None = None,
        on_alert: Callable[[str], None] = lambda _: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare.

        Args:
            webhook: address to which alerts are posted as JSON.
            on_alert: called with the words of each.
            clock: seconds that go by.

        Raises:
            UsageError: a condition or the address cannot be understood.
        """
        for condition in conditions:
            parse_condition(condition)
        if webhook is not None and urlsplit(webhook).scheme not in {"http", "https"}:
            raise UsageError(f"--webhook {webhook}: an address is needed that begins with http:// or https://")
        self._conditions, self._webhook, self._on_alert, self._clock = list(conditions), webhook, on_alert, clock
        self._told: dict[tuple[str, str], set[str]] = {}
        """By run and condition, the causes for which it has held since it began to."""
        self._arrived_s: dict[str, float] = {}

    def look(self, run: str, analysis: Analysis) -> None:
        """Tell what has begun to hold."""
        arrived_s = self._arrived_s.setdefault(run, self._clock())
        if analysis.facts.steps.count < MIN_STEPS:
            return
        if analysis.condition.is_incomplete and self._clock() - arrived_s < ARRIVAL_S:
            return
        for condition in self._conditions:
            broken = check(analysis, condition)
            key, cause = (run, condition), analysis.verdict.cause
            if broken is None:
                self._told.pop(key, None)
            elif cause not in self._told.setdefault(key, set()):
                self._told[key].add(cause)
                self._tell(run, condition, broken, analysis)

    def _tell(self, run: str, condition: str, broken: str, analysis: Analysis) -> None:
        self._on_alert(f"{run}: {condition}: {broken}")
        if self._webhook is not None:
            verdict = analysis.verdict
            told = {
                "run": run,
                "condition": condition,
                "is": broken,
                "verdict": {"class": verdict.class_, "cause": verdict.cause, "ranks": list(verdict.ranks)},
                "sentence": verdict.sentence,
                "remedy": verdict.remedy,
                "predicted_gain": verdict.predicted_gain,
            }
            # Whoever listens may be slow, and the next analysis must not wait.
            threading.Thread(target=self._post, args=(told,), daemon=True).start()

    def _post(self, told: dict[str, Any]) -> None:
        assert self._webhook is not None
        request = urllib.request.Request(self._webhook, data=json.dumps(told).encode(), method="POST")  # noqa: S310  http(s)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310
                pass
        except (OSError, ValueError) as error:
            _log.warning("the alert could not be posted to %s: %s", self._webhook, error)
