"""Says it when a run comes to be as it must not be: to a web address, and by ending."""

import json
import logging
import threading
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from ...timeline.errors import UsageError
from ..analysis import Analysis
from ..compare.gate import check, parse_condition

_TIMEOUT_S: Final = 10.0
#: With fewer steps nothing is sure.
LEAST_STEPS: Final = 10

_log = logging.getLogger("tlkit.collector")


class Alerts:
    """Conditions (as of --fail-on) that are looked at with every new analysis; each is told once when it begins to hold."""

    def __init__(
        self, conditions: Sequence[str], webhook: str | None = None, on_alert: Callable[[str], None] = lambda _: None
    ) -> None:
        """Prepare.

        Args:
            webhook: address to which alerts are posted as JSON.
            on_alert: called with the words of each.

        Raises:
            UsageError: a condition or the address cannot be understood.
        """
        for condition in conditions:
            parse_condition(condition)
        if webhook is not None and urlsplit(webhook).scheme not in {"http", "https"}:
            raise UsageError(f"--webhook {webhook}: an address is needed that begins with http:// or https://")
        self._conditions, self._webhook, self._on_alert = list(conditions), webhook, on_alert
        self._holding: set[tuple[str, str]] = set()

    def look(self, run: str, analysis: Analysis) -> None:
        """Tell what has begun to hold."""
        if analysis.facts.steps.count < LEAST_STEPS:
            return
        for condition in self._conditions:
            broken = check(analysis, condition)
            key = (run, condition)
            if broken is None:
                self._holding.discard(key)
            elif key not in self._holding:
                self._holding.add(key)
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
