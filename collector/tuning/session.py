"""A tuning from its first job to its last: diagnose, try the settings one by one, then those that gain together.

Settings that can change while a job runs are tried in blocks of steps within one job, the others in short jobs.  Either way the
run as it is and all settings that are still open take turns, in another order each round, so that whatever else happens on the
machine meets all of them; each round gives each setting one pair of times.  What the diagnosis asks for goes before what only may
help.
"""

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from ...timeline.errors import TraceError, UsageError
from ...timeline.trials import Seen
from ..analysis import Analysis, analyze
from ..predict.change import all_of
from .blocks import BLOCK_STEPS, block_times, blocks_of
from .jobs import Command, JobResult, Jobs, Runner
from .losses import compare
from .outcome import How, Kept, Together, Tried, best_of_each
from .settings import SETTINGS, Candidate, known_of, propose, reached
from .statistics import MIN_PAIRS, WORTH_RATIO, estimate, gain_of_pair, steps_of_trial, warm_up_of

#: Rounds at most; after MIN_PAIRS of them a setting may be decided.
MAX_ROUNDS: Final = 8
#: Rounds of blocks before settings that are plainly worse are left out, and after that.
FIRST_ROUNDS: Final = 2
MORE_ROUNDS: Final = 5
#: Of the time that is left, what trying one by one may take; the rest is for all together.
ONE_BY_ONE_SHARE: Final = 0.65
#: A job may take so many times as long as the first one, and this much at least.
PATIENCE: Final = 4.0
MIN_PATIENCE_S: Final = 60.0
#: Together they should reach so much of what the best of them gains alone.
ENOUGH_OF_BEST: Final = 0.8

Notify = Callable[[str, int, int], None]
"""What is being done, how many jobs are done, how many there will be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What the user asks for."""

    command: Command
    steps: int = 60
    minutes: float = 10.0
    names: Sequence[str] = tuple(SETTINGS)
    allow_lossy: bool = False
    seed: int = 0
    folder: Path | None = None
    """For recordings and outputs; None for a temporary one."""


@dataclass(kw_only=True, slots=True)
class Findings:
    """What is known so far.  Whole at any moment, so that an interrupted tuning can be reported."""

    analysis: Analysis | None = None
    seen: Seen | None = None
    tried: list[Tried] = field(default_factory=list)
    together: Together | None = None
    baseline_ns: list[float] = field(default_factory=list)
    """Mean step of each job without a change."""
    jobs: int = 0
    steps: int = 0
    """Of a trial."""
    seconds: float = 0.0
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)

    def kept(self, *, allow_lossy: bool) -> list[Tried]:
        """The settings to use, best first."""
        best = best_of_each(self.tried, allow_lossy=allow_lossy)
        if self.together is None or not self.together.candidates:
            return best
        chosen = {candidate.label for candidate in self.together.candidates}
        return [one for one in best if one.candidate.label in chosen]


class Session:
    """One tuning."""

    def __init__(
        self,
        wishes: Wishes,
        notify: Notify = lambda *_: None,
        clock_s: Callable[[], float] = time.monotonic,
        make_jobs: Callable[[Command, Path, int], Runner] = Jobs,
    ) -> None:
        """Prepare.

        Args:
            notify: told of progress, several times a second.
            clock_s: goes by while jobs run.
            make_jobs: of the command, a folder and the seed, what runs jobs.
        """
        self.found = Findings()
        self._wishes = wishes
        self._notify = notify
        self._clock_s = clock_s
        self._begun_s = clock_s()
        self._end_s = self._begun_s + 60 * wishes.minutes
        self._random = random.Random(wishes.seed)  # noqa: S311  the order of trials
        self._losses: list[list[float | None]] = []
        self._limit_s = max(60 * wishes.minutes, MIN_PATIENCE_S)
        self._job_s = 0.0
        self._steps = wishes.steps
        self._planned = 1
        self._make_jobs = make_jobs
        self._jobs: Runner | None = None

    def run(self) -> Findings:
        """Do all of it, or as much as there is time for; an interrupt ends it with what is known.

        Raises:
            UsageError: the command cannot be tuned: it fails, or counts no steps.
        """
        with tempfile.TemporaryDirectory(prefix="tl-tune-") as temporary:
            folder = self._wishes.folder or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            self._jobs = self._make_jobs(self._wishes.command, folder, self._wishes.seed)
            try:
                self._diagnose(folder)
                for is_predicted in (True, False):
                    tried = [one for one in self.found.tried if (one.candidate.predicted is not None) is is_predicted]
                    self._in_blocks([one for one in tried if one.candidate.is_live])
                    self._in_jobs([one for one in tried if one.how is How.NOT])
                if not self.found.notes and not best_of_each(self.found.tried, allow_lossy=self._wishes.allow_lossy):
                    # Nothing to try together: that time is for what is still open.
                    self._in_jobs([one for one in self.found.tried if one.how is not How.BLOCKS], share=1.0)
                self._all_together()
            except KeyboardInterrupt:
                self.found.interrupted = True
        self.found.seconds = self._clock_s() - self._begun_s
        return self.found

    # Jobs.

    def _run(self, candidates: Sequence[Candidate], what: str, **how: Any) -> JobResult:
        """Run one job; `how` are arguments of `Runner.run` that differ from the usual."""
        assert self._jobs is not None
        planned = max(self._planned, self.found.jobs + 1)

        def look() -> None:
            self._notify(what, self.found.jobs, planned)

        look()
        result = self._jobs.run(candidates, on_look=look, **({"steps": self._steps, "limit_s": self._limit_s} | how))
        self.found.jobs += 1
        return result

    def _has_time_for(self, jobs: int, until_s: float) -> bool:
        return self._clock_s() + jobs * self._job_s <= until_s

    def _baseline(self, what: str) -> JobResult | None:
        """A job without a change; once more if it fails, and None if it fails again."""
        for _ in range(2):
            result = self._run((), what)
            if not result.failed and len(result.steps_ns):
                self._losses.append(result.losses)
                self.found.baseline_ns.append(result.step_ns)
                return result
        self.found.notes.append(f"a job without any change failed, so there is nothing to compare with: {result.why}")
        return None

    # The parts.

    def _diagnose(self, folder: Path) -> None:
        """Record a short run, and choose what to try.

        Raises:
            UsageError: it fails, or has no steps.
        """
        begun_s = self._clock_s()
        timeline = folder / "diagnosis.json"
        result = self._run((), "recording a run to diagnose", timeline=timeline)
        if result.timed_out:
            raise UsageError(f"{result.why}: give it more time (--minutes) or fewer steps (--steps)")
        if result.status:
            raise UsageError(f"the command fails as it is: {result.last_line or f'exit status {result.status}'}")
        if not result.trials or len(result.steps_ns) < BLOCK_STEPS:
            raise UsageError(
                "too few steps were counted: the script has to call hvd.init() or tlkit.instrument() before its loop, step an "
                f"optimizer of torch in this process, and train for {BLOCK_STEPS + 2} steps at least"
            )
        self._set_length(result, self._clock_s() - begun_s)
        self._losses.append(result.losses)
        try:
            analysis = analyze(str(timeline))
        except TraceError as error:
            raise UsageError(f"the run was recorded, and its timeline cannot be read: {error}") from error
        self.found.analysis, self.found.seen = analysis, result.trials[0].seen
        known = known_of(analysis, result.trials[0].seen, launched_here=self._wishes.command.is_launched_here)
        candidates = propose(known, self._wishes.names)
        if not self._wishes.allow_lossy:
            # What changes results is worth a try only where the diagnosis asks for it.
            candidates = [one for one in candidates if not one.is_lossy or one.finding is not None]
        self.found.tried = [Tried(candidate=candidate) for candidate in candidates]
        self._planned = 1 + MIN_PAIRS * (1 + sum(not one.candidate.is_live for one in self.found.tried))

    def _set_length(self, result: JobResult, took_s: float) -> None:
        """How many steps a trial has, and how long it may take, by the first one."""
        counted = len(result.trials[0].ends_ns)
        is_all = any(trial.ended_itself for trial in result.trials)
        self._steps = counted if is_all else steps_of_trial(self._steps, result.step_ns)
        self.found.steps = self._steps
        self._job_s = took_s + max(self._steps - counted, 0) * result.step_ns / 1e9
        self._limit_s = max(PATIENCE * self._job_s, MIN_PATIENCE_S)

    def _in_blocks(self, tried: Sequence[Tried]) -> None:
        """Settings that change while a job runs: a few rounds for all, then more for those that may gain.

        A job that ends before one round does leaves them to jobs of their own, whether the script is short or one of them fails.
        """
        rounds = FIRST_ROUNDS
        while left := [one for one in tried if not one.is_decided and len(one.gains) < MAX_ROUNDS]:
            known = len(left[0].gains)
            if not self._has_time_for(1, self._end_s):
                return
            self._blocks(left, rounds)
            if len(left[0].gains) == known:
                return
            rounds = MORE_ROUNDS

    def _blocks(self, tried: Sequence[Tried], rounds: int) -> None:
        """One job in which the run as it is and the settings take turns."""
        warm_up = warm_up_of(self._steps)
        order: list[Tried | None] = []
        for _ in range(rounds):
            turn: list[Tried | None] = [None, *tried]
            self._random.shuffle(turn)
            order += turn
        blocks = blocks_of(order, warm_up)
        steps = sum(block.steps for block in blocks) + 1
        limit_s = min(max(self._limit_s, self._limit_s * steps / self._steps), max(self._end_s - self._clock_s(), 30.0))
        what = "trying " + ", ".join(one.candidate.label for one in tried)
        result = self._run((), what, steps=steps, blocks=blocks, limit_s=limit_s)
        if not result.trials:
            return
        times = block_times(result, warm_up, len(order))
        losses = compare(self._losses, result.losses)
        for begin in range(0, len(times) - len(tried), len(tried) + 1):
            turn = order[begin : begin + len(tried) + 1]
            taken = dict(zip(map(id, turn), times[begin : begin + len(turn)], strict=True))
            for one in tried:
                one.how = How.BLOCKS
                one.gains.append(gain_of_pair(taken[id(None)], taken[id(one)]))
                one.losses = losses

    def _in_jobs(self, tried: Sequence[Tried], share: float = ONE_BY_ONE_SHARE) -> None:
        """Rounds of short jobs, for a share of the time that is left; settings that are decided drop out."""
        if not tried:
            return
        until_s = self._clock_s() + share * (self._end_s - self._clock_s())
        fitting = int((until_s - self._clock_s()) / max(self._job_s, 0.1) / MIN_PAIRS) - 1
        # Those that have been begun go first: a pair more may decide them.
        chosen = sorted(tried, key=lambda one: one.is_decided or not one.gains)[: max(fitting, 1)]
        for number in range(MAX_ROUNDS):
            open_ = [one for one in chosen if not one.is_decided and len(one.gains) < MAX_ROUNDS]
            is_first = not number and all(one.how is How.NOT for one in self.found.tried)
            if not open_ or not (is_first or self._has_time_for(len(open_) + 1, until_s)):
                return
            self._planned = self.found.jobs + max(MIN_PAIRS - number, 1) * (len(open_) + 1)
            if not self._round(open_):
                return

    def _round(self, tried: Sequence[Tried]) -> bool:
        """The run as it is and each setting once; False if the former fails."""
        turn: list[Tried | None] = [None, *tried]
        self._random.shuffle(turn)
        before: JobResult | None = None
        after: list[tuple[Tried, JobResult]] = []
        for one in turn:
            if one is None:
                before = self._baseline("running it as it is")
                if before is None:
                    return False
            else:
                after.append((one, self._run((one.candidate,), f"trying {one.candidate.label}")))
        assert before is not None
        for one, result in after:
            one.how = How.JOBS
            if result.failed or not len(result.steps_ns):
                one.failed = result.why
                continue
            if not reached(one.candidate, result.trials[0].seen):
                one.failed = "not applied: the script creates it before hvd.init() or tlkit.instrument()"
            one.gains.append(gain_of_pair(before.step_ns, result.step_ns))
            one.losses = compare(self._losses, result.losses)
        return True

    def _all_together(self) -> None:
        """The settings that gain, all at once; one by one fewer while that is worse than the best of them alone."""
        lossy = self._wishes.allow_lossy
        kept = best_of_each(self.found.tried, allow_lossy=lossy)
        while kept:
            if len(kept) == 1 and kept[0].how is How.JOBS:
                one = kept[0]
                self.found.together = Together(
                    candidates=[one.candidate], predicted=one.candidate.predicted, gains=one.gains, losses=one.losses
                )
                return
            together = self._measure_together(kept)
            best = max(estimate(one.gains) for one in kept)
            if self._holds(together) and estimate(together.gains) >= ENOUGH_OF_BEST * best:
                return
            if len(kept) == 1 or not together.gains or not self._has_time_for(2 * MIN_PAIRS, self._end_s):
                break
            dropped = kept.pop()
            dropped.better = "takes away from the others"
        if self.found.together is not None and not self._holds(self.found.together):
            self._without_confirmation(kept)

    def _holds(self, together: Together) -> bool:
        """Whether it gains, and may be kept."""
        return together.is_worth_it and (self._wishes.allow_lossy or not together.changes_results)

    def _without_confirmation(self, kept: Sequence[Tried]) -> None:
        """All together were not confirmed: what is left is the best setting that whole jobs have shown to gain alone.

        Or that blocks of one job have, if whole jobs are too few or differ too much to tell, and agree as far as they go.
        """
        best = next((one for one in kept if one.how is How.JOBS), None)
        if best is None and kept and self._agrees(kept[0]):
            best = kept[0]
        for one in kept:
            if one is not best:
                one.better = "whole jobs with all that gains did not confirm it"
        self.found.together = None
        if best is not None:
            self.found.together = Together(
                candidates=[best.candidate], predicted=best.candidate.predicted, gains=best.gains, losses=best.losses
            )

    def _agrees(self, one: Tried) -> bool:
        """Whether whole jobs do not decide, because they are too few or differ too much, and show what `one` gains."""
        together = self.found.together
        if together is None or together.failed or together.changes_results or not together.gains:
            return False
        enough = ENOUGH_OF_BEST * estimate(one.gains)
        if together.bounds is None:
            return min(together.gains) >= enough
        return estimate(together.gains) > WORTH_RATIO and together.bounds[1] >= enough

    def _measure_together(self, kept: Sequence[Tried]) -> Together:
        together = self.found.together = Together(
            candidates=[one.candidate for one in kept], predicted=self._predicted_together(kept)
        )
        pairs: list[tuple[float, float]] = []
        for number in range(MAX_ROUNDS):
            if together.is_worth_it or (number and not self._has_time_for(2, self._end_s)):
                break
            self._planned = self.found.jobs + 2 * max(MIN_PAIRS - number, 1)
            order = [False, True] if number % 2 else [True, False]
            results = {}
            for with_them in order:
                candidates = together.candidates if with_them else ()
                what = "trying " + " + ".join(one.label for one in candidates) if with_them else "running it as it is"
                results[with_them] = self._run(candidates, what)
            before, after = results[False], results[True]
            if before.failed or not len(before.steps_ns):
                continue
            self._losses.append(before.losses)
            self.found.baseline_ns.append(before.step_ns)
            if after.failed or not len(after.steps_ns):
                together.failed = after.why
                break
            pairs.append((before.step_ns, after.step_ns))
            together.gains.append(gain_of_pair(before.step_ns, after.step_ns))
            together.losses = compare(self._losses, after.losses)
            together.steps_ns = (median(a for a, _ in pairs), median(b for _, b in pairs))
        return together

    def _predicted_together(self, kept: Sequence[Tried]) -> float | None:
        """By replay with the remedies of all findings that ask for these settings."""
        analysis = self.found.analysis
        found = {id(one.candidate.finding): one.candidate.finding for one in kept}
        outcomes = [finding.outcome for finding in found.values() if finding is not None]
        if analysis is None or analysis.facts.replay is None or not outcomes:
            return None
        return analysis.facts.outcome(all_of([outcome.change for outcome in outcomes if outcome is not None])).gain


__all__ = ["Findings", "Kept", "Session", "Wishes"]
