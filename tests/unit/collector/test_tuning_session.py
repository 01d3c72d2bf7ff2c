"""A tuning against jobs whose truth is known: what each setting does to the step, to the losses, or to the job."""

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tlkit.collector.tuning.cli import main, make_parser, wishes_of
from tlkit.collector.tuning.jobs import Command, JobResult, Jobs, environment_with
from tlkit.collector.tuning.outcome import How, Kept
from tlkit.collector.tuning.report import render, to_json
from tlkit.collector.tuning.session import ONE_BY_ONE_SHARE, Session, Wishes
from tlkit.collector.tuning.settings import SETTINGS, Candidate
from tlkit.timeline.commands.console import make_console
from tlkit.timeline.errors import UsageError
from tlkit.timeline.trials import Block, LoaderSeen, RankTrial, Seen

from ..timeline.test_trials import SEEN

TRACES = Path(__file__).resolve().parents[3] / "samples" / "traces"
LOADER = LoaderSeen(workers=0, prefetch=None, persistent=False, pin_memory=False, is_iterable=False, epochs=1)
STEP_S = 0.1
START_S = 5.0
STEP_OF_A_FEW_MS = 0.005
#: A setting has the same effect in blocks as in jobs of its own.
IN_BLOCKS = {"optimizer.fused=1": "fused-optimizer on"}


class Machine:
    """Runs jobs of two ranks in no time; its clock is the jobs'.

    `effects` are factors of the step by the label of a setting; several at once multiply.
    """

    def __init__(
        self,
        effects: Mapping[str, float],
        *,
        trace: str = "slow-loader",
        noise: float = 0.02,
        noise_of_jobs: float | None = None,
        seen: Seen = SEEN,
        length: int = 10_000,
        step_s: float = STEP_S,
        losses: Callable[[set[str], int], float] = lambda _, step: 2 / (1 + 0.1 * step),
        fails: Callable[[set[str], int], str] = lambda _, __: "",
    ) -> None:
        self.effects, self.trace, self.noise, self.seen, self.length = effects, trace, noise, seen, length
        self.step_s = step_s
        self.noise_of_jobs = noise if noise_of_jobs is None else noise_of_jobs
        self.steps: list[int] = []
        self.losses, self.fails = losses, fails
        self.random = np.random.default_rng(1)
        self.now_s = 0.0
        self.ran: list[set[str]] = []

    def clock_s(self) -> float:
        return self.now_s

    def make(self, _command: Command, _folder: Path, _seed: int) -> "Machine":
        return self

    def run(
        self,
        candidates: Sequence[Candidate],
        *,
        steps: int,
        limit_s: float,
        blocks: Sequence[Block] = (),
        timeline: Path | None = None,
        on_look: Callable[[], None] = lambda: None,
    ) -> JobResult:
        labels = {candidate.label for candidate in candidates}
        self.ran.append(labels)
        self.steps.append(steps)
        on_look()
        if timeline is not None:
            self.record(timeline)
        begun_s = self.now_s
        self.now_s += START_S
        of_job = self.random.normal(1, self.noise_of_jobs)
        settings = [block.settings for block in blocks for _ in range(block.steps)]
        ends, now_ns = [], 0
        for step in range(min(steps, self.length)):
            live = settings[min(step, len(settings) - 1)] if settings else {}
            factor = float(np.prod([self.effects.get(label, 1.0) for label in labels]))
            factor *= float(
                np.prod(
                    [
                        self.effects.get(IN_BLOCKS.get(f"{name}={value}", f"{name}={value}"), 1.0)
                        for name, value in live.items()
                    ]
                )
            )
            now_ns += round(1e9 * self.step_s * factor * of_job * self.random.normal(1, self.noise))
            ends.append(now_ns)
        why = self.fails(labels, len(self.ran))
        timed_out = now_ns / 1e9 > limit_s
        self.now_s += min(now_ns / 1e9, limit_s)
        losses = [self.losses(labels, step) for step in range(len(ends))]
        workers = next((c.settings["loader.workers"] for c in candidates if "loader.workers" in c.settings), "0")
        given = {name: value for candidate in candidates for name, value in candidate.settings.items()}
        seen = msgspec.structs.replace(
            self.seen,
            loaders=[msgspec.structs.replace(each, workers=int(workers)) for each in self.seen.loaders],
            fused=self.seen.fused if "fused-optimizer on" not in labels else True,
            threads=int(given.get("torch.threads", self.seen.threads)),
            transport="mpi" if any(candidate.mpi for candidate in candidates) else "gloo",
        )
        trials = [
            RankTrial(
                rank=rank, size=2, begun_ns=0, ends_ns=ends, losses=[*losses], seen=seen, ended_itself=steps > len(ends)
            )
            for rank in range(2)
        ]
        return JobResult(
            trials=[] if why or timed_out else trials,
            status=1 if why else 0,
            last_line=why,
            wall_s=self.now_s - begun_s,
            timed_out=timed_out,
        )

    def record(self, timeline: Path) -> None:
        for source in (TRACES / self.trace).iterdir():
            name = source.name.removesuffix(".gz").replace("t.", f"{timeline.stem}.", 1)
            timeline.with_name(name).write_bytes(gzip.decompress(source.read_bytes()))


def tune(machine: Machine, **wishes: Any) -> Session:
    """A whole session."""
    arguments: dict[str, Any] = {"command": Command(words=("python", "train.py"), np=2), "minutes": 60.0} | wishes
    session = Session(Wishes(**arguments), clock_s=machine.clock_s, make_jobs=machine.make)
    session.run()
    return session


def verdicts(session: Session, *, allow_lossy: bool = False) -> dict[str, str]:
    return {one.candidate.label: str(one.verdict(allow_lossy=allow_lossy)[0]) for one in session.found.tried}


WITH_LOADER = msgspec.structs.replace(SEEN, loaders=[LOADER], fusion_threshold_nbytes=128 << 20)


def test_what_gains_is_kept_and_what_does_not_is_not() -> None:
    """Workers halve the step, threads and cycle do nothing, and what is kept is measured together."""
    machine = Machine({"workers 2": 0.5, "workers 4": 0.6, "fused-optimizer on": 1.2}, seen=WITH_LOADER)
    session = tune(machine)
    found = session.found
    kept = found.kept(allow_lossy=False)

    assert [one.candidate.label for one in kept] == ["workers 2"]
    assert verdicts(session)["workers 4"] == "no"
    assert verdicts(session)["fused-optimizer on"] == "no"
    workers = next(one for one in found.tried if one.candidate.label == "workers 2")
    assert workers.candidate.predicted is not None
    assert workers.candidate.predicted > 0.3
    assert workers.gain == pytest.approx(0.5, abs=0.05)
    assert workers.bounds is not None
    assert workers.bounds[0] > 0.4
    assert found.together is not None
    assert found.together.gains == workers.gains  # one setting in jobs needs no second look


def test_the_first_to_be_tried_is_what_the_diagnosis_asks_for() -> None:
    """By predicted gain; what may help comes after that."""
    tried = tune(Machine({}, seen=WITH_LOADER)).found.tried
    predicted = [one.candidate.predicted or 0.0 for one in tried]

    assert tried[0].candidate.name == "workers"
    assert predicted == sorted(predicted, reverse=True)
    assert predicted[-1] == 0.0


def test_settings_that_change_while_a_job_runs_are_tried_in_one_job() -> None:
    """Their gain is confirmed by whole jobs, since they hold from the start there."""
    machine = Machine({"HOROVOD_CYCLE_TIME=5": 0.8, "cycle 5 ms": 0.8}, trace="healthy")
    session = tune(machine, names=("cycle",))
    by_label = {one.candidate.label: one for one in session.found.tried}

    assert by_label["cycle 5 ms"].how is How.BLOCKS
    assert verdicts(session) == {"cycle 5 ms": "kept", "cycle 0.1 ms": "no"}
    assert session.found.together is not None
    assert session.found.together.is_worth_it
    assert {"cycle 5 ms"} in machine.ran  # the confirmation
    assert machine.ran.count(set()) <= 8


def test_a_gain_in_blocks_that_jobs_do_not_show_is_not_kept() -> None:
    """Blocks may see what holds only after the start."""
    session = tune(Machine({"HOROVOD_CYCLE_TIME=5": 0.8}, trace="healthy"), names=("cycle",))

    assert session.found.kept(allow_lossy=False) == []
    assert verdicts(session)["cycle 5 ms"] == "no"


def test_jobs_that_differ_too_much_to_tell_leave_what_blocks_show() -> None:
    """A fifth, where one job differs from the next by as much; unless they show the opposite."""
    machine = Machine({"fused-optimizer on": 0.8}, trace="healthy", seen=WITH_LOADER, noise_of_jobs=0.2)
    session = tune(machine, names=("fused-optimizer",))
    (one,) = session.found.tried

    assert one.how is How.BLOCKS
    assert verdicts(session) == {"fused-optimizer on": "kept"}
    assert session.found.kept(allow_lossy=False) == [one]
    assert session.found.together is not None
    assert session.found.together.gains == one.gains


@pytest.mark.parametrize(("in_jobs", "expected"), [(0.05, "kept"), (0.6, "no")])
def test_blocks_suffice_where_there_is_no_time_for_enough_jobs(in_jobs: float, expected: str) -> None:
    """As long as the few whole jobs that there was time for agree."""
    effects = {"HOROVOD_CYCLE_TIME=5": 0.05, "cycle 5 ms": in_jobs}
    machine = Machine(effects, trace="healthy")
    session = tune(machine, names=("cycle",), minutes=1.5)
    pairs = [labels for labels in machine.ran if labels == {"cycle 5 ms"}]

    assert 0 < len(pairs) < 4
    assert verdicts(session)["cycle 5 ms"] == expected


def test_a_script_that_ends_before_a_round_of_blocks_has_its_settings_tried_in_jobs() -> None:
    """Twenty steps hold no round of three blocks."""
    machine = Machine({"cycle 5 ms": 0.7}, trace="healthy", length=20)
    session = tune(machine, names=("cycle",))

    assert {one.how for one in session.found.tried} == {How.JOBS}
    assert verdicts(session)["cycle 5 ms"] == "kept"


def test_what_gains_alone_and_harms_together_is_left_out() -> None:
    """Each takes a third; together they take nothing."""

    class Quarrel(Machine):
        def run(self, candidates: Sequence[Candidate], **how: Any) -> JobResult:
            self.effects = {} if len(candidates) > 1 else {"workers 2": 0.5, "fused-optimizer on": 0.8}
            return super().run(candidates, **how)

    session = tune(Quarrel({}, seen=WITH_LOADER), names=("workers", "fused-optimizer"))

    assert [one.candidate.label for one in session.found.kept(allow_lossy=False)] == ["workers 2"]
    assert session.found.together is not None
    assert session.found.together.is_worth_it


def test_several_settings_are_kept_together() -> None:
    """And the replay with both remedies says what to expect."""
    machine = Machine({"workers 2": 0.5, "fused-optimizer on": 0.8}, seen=WITH_LOADER)
    session = tune(machine, names=("workers", "fused-optimizer"))
    together = session.found.together

    assert together is not None
    assert {candidate.label for candidate in together.candidates} == {"workers 2", "fused-optimizer on"}
    assert together.gains[0] == pytest.approx(0.6, abs=0.05)
    assert together.predicted is not None
    assert together.steps_ns is not None
    assert together.steps_ns[0] > 2 * together.steps_ns[1]


def test_settings_that_change_the_losses_only_together_are_not_kept_together() -> None:
    """Each by itself leaves them alone: the better one is kept."""

    def losses(labels: set[str], step: int) -> float:
        return 2 / (1 + 0.1 * step) * (1.05 if len(labels) > 1 else 1.0)

    machine = Machine({"workers 2": 0.5, "fused-optimizer on": 0.8}, seen=WITH_LOADER, losses=losses)
    session = tune(machine, names=("workers", "fused-optimizer"))

    assert [one.candidate.label for one in session.found.kept(allow_lossy=False)] == ["workers 2"]
    assert session.found.together is not None
    assert not session.found.together.changes_results


def test_a_block_so_slow_that_the_job_is_stopped_leaves_its_settings_to_jobs() -> None:
    """Where the others are not held up by it."""
    effects = {"torch.threads=2": 1000.0, "threads 2": 1000.0, "HOROVOD_CYCLE_TIME=5": 0.7, "cycle 5 ms": 0.7}
    seen = msgspec.structs.replace(WITH_LOADER, cores=4)
    session = tune(Machine(effects, trace="healthy", seen=seen), names=("threads", "cycle"))

    assert verdicts(session)["cycle 5 ms"] == "kept"
    assert verdicts(session)["threads 2"] == "no"


def test_what_changes_the_losses_is_not_kept_silently() -> None:
    """Suggested, and kept if the user takes it."""

    def losses(labels: set[str], step: int) -> float:
        return 2 / (1 + 0.1 * step) * (1.01 if any("workers" in label for label in labels) and step else 1.0)

    for allow_lossy, verdict in ((False, "suggested"), (True, "kept")):
        machine = Machine({"workers 2": 0.5}, seen=WITH_LOADER, losses=losses)
        session = tune(machine, names=("workers",), allow_lossy=allow_lossy)
        assert verdicts(session, allow_lossy=allow_lossy)["workers 2"] == verdict
        assert bool(session.found.kept(allow_lossy=allow_lossy)) is allow_lossy
        (why,) = [one.verdict(allow_lossy=allow_lossy)[1] for one in session.found.tried if one.candidate.value == "2"]
        assert "the losses differ by 0.01" in why


def test_compression_is_tried_for_those_who_allow_it_or_where_it_is_asked_for() -> None:
    """By what it is, whatever the losses say."""
    silent = tune(Machine({"compression fp16": 0.5}, trace="healthy"), names=("compression",))
    allowed = tune(Machine({"compression fp16": 0.5}, trace="healthy"), names=("compression",), allow_lossy=True)

    assert verdicts(silent) == {}
    assert verdicts(allowed, allow_lossy=True) == {"compression fp16": "kept"}
    assert verdicts(allowed) == {"compression fp16": "suggested"}


def test_a_setting_under_which_the_job_fails_is_dropped_with_its_last_line() -> None:
    """And the tuning goes on."""
    machine = Machine(
        {"workers 4": 0.5},
        seen=WITH_LOADER,
        fails=lambda labels, _: "OSError: too many open files" if "workers 2" in labels else "",
    )
    session = tune(machine, names=("workers",))
    whys = {one.candidate.label: one.verdict(allow_lossy=False)[1] for one in session.found.tried}

    assert whys["workers 2"] == "the job failed: OSError: too many open files"
    assert verdicts(session)["workers 4"] == "kept"
    assert sum("workers 2" in labels for labels in machine.ran) == 1


def test_a_setting_that_hangs_is_dropped() -> None:
    """After a few times what the first job took."""
    machine = Machine({"workers 2": 1000.0, "workers 4": 0.5}, seen=WITH_LOADER)
    session = tune(machine, names=("workers",))
    whys = {one.candidate.label: one.verdict(allow_lossy=False)[1] for one in session.found.tried}

    assert "had not ended after" in whys["workers 2"]
    assert verdicts(session)["workers 4"] == "kept"


def test_a_command_that_fails_as_it_is_cannot_be_tuned() -> None:
    """Nor one that counts no steps."""
    with pytest.raises(UsageError, match="fails as it is: ModuleNotFoundError"):
        tune(Machine({}, fails=lambda _, __: "ModuleNotFoundError: nothing"))
    with pytest.raises(UsageError, match="too few steps"):
        tune(Machine({}, length=3))


def test_baselines_that_fail_later_end_the_tuning_with_what_is_known() -> None:
    """There is nothing to compare with any more."""
    machine = Machine(
        {"workers 2": 0.5}, seen=WITH_LOADER, fails=lambda labels, number: "" if labels or number < 9 else "Killed"
    )
    session = tune(machine, names=("workers",))

    assert session.found.notes == [
        "a job without any change failed, so there is nothing to compare with: the job failed: Killed"
    ]
    assert "open" in verdicts(session).values() or session.found.kept(allow_lossy=False)


def test_the_time_is_kept_to() -> None:
    """What there is no time for is said to be open."""
    machine = Machine({}, seen=WITH_LOADER)
    session = tune(machine, minutes=2.0)
    whys = [one.verdict(allow_lossy=False)[1] for one in session.found.tried]

    assert machine.now_s < 3 * 60
    assert "not tried: no time left (--minutes)" in whys


def test_short_steps_are_more_of_them() -> None:
    """Three seconds of them, and no more than ten times as many as were asked for; a script that ends earlier is not asked for more."""
    for step_s, length, expected in (
        (0.1, 10_000, 60),
        (STEP_OF_A_FEW_MS, 10_000, 600),
        (0.01, 10_000, 300),
        (0.01, 40, 40),
    ):
        machine = Machine({}, seen=WITH_LOADER, step_s=step_s, length=length, noise=0.0)
        session = tune(machine, names=("binding",))

        assert machine.steps[0] == 60
        assert machine.steps[1] == pytest.approx(expected, abs=1)
        assert session.found.steps == machine.steps[1]
        assert to_json(session.found, session._wishes)["steps_per_trial"] == session.found.steps


def test_time_that_nothing_is_left_for_goes_to_what_is_open() -> None:
    """A setting whose pairs are noisy, and no other that gains: the time that is meant for all together decides it."""
    machine = Machine({"binding cores divided among ranks": 0.7}, seen=WITH_LOADER, noise=0.3, step_s=0.2)
    session = tune(machine, names=("binding",), minutes=4.0)
    (one,) = session.found.tried

    assert one.is_worth_it
    assert ONE_BY_ONE_SHARE * 4 * 60 < machine.now_s < 4 * 60


def test_an_interrupt_leaves_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    """In the middle of the third round."""

    class Interrupted(Machine):
        def run(self, candidates: Sequence[Candidate], **how: Any) -> JobResult:
            if len(self.ran) == 9:
                raise KeyboardInterrupt
            return super().run(candidates, **how)

    session = tune(Interrupted({"workers 2": 0.5}, seen=WITH_LOADER), names=("workers",))
    wishes = Wishes(command=Command(words=("python", "train.py"), np=2))
    render(session.found, wishes, make_console(is_plain=True))
    printed = capsys.readouterr().out
    written = to_json(session.found, wishes)

    assert session.found.interrupted
    assert "Interrupted after 9 jobs" in printed
    assert "pairs are too few to decide" in printed
    assert written["interrupted"] is True
    assert any(one["measured_gain"] == pytest.approx(0.5, abs=0.05) for one in written["tried"])


def test_a_setting_that_does_not_reach_the_script_is_not_taken_for_one_without_effect() -> None:
    """A loader that the script makes before hvd.init()."""

    class Deaf(Machine):
        def run(self, candidates: Sequence[Candidate], **how: Any) -> JobResult:
            result = super().run(candidates, **how)
            trials = [
                msgspec.structs.replace(trial, seen=msgspec.structs.replace(trial.seen, loaders=[LOADER]))
                for trial in result.trials
            ]
            return JobResult(trials=trials, status=0, last_line="", wall_s=result.wall_s, timed_out=False)

    session = tune(Deaf({}, seen=WITH_LOADER), names=("workers",))

    assert {one.failed for one in session.found.tried} == {
        "not applied: the script creates it before hvd.init() or tlkit.instrument()"
    }


def test_the_report_says_what_to_use(capsys: pytest.CaptureFixture[str]) -> None:
    """The table, the gain together, and a line to paste."""
    machine = Machine({"workers 2": 0.5, "fused-optimizer on": 0.8}, seen=WITH_LOADER)
    wishes = Wishes(
        command=Command(words=("python", "a file.py"), np=2), minutes=60.0, names=("workers", "fused-optimizer")
    )
    session = Session(wishes, clock_s=machine.clock_s, make_jobs=machine.make)
    session.run()
    render(session.found, wishes, make_console(is_plain=True))
    printed = capsys.readouterr().out
    written = json.loads(json.dumps(to_json(session.found, wishes)))

    assert "TLKIT_SETTINGS=loader.workers=2,optimizer.fused=1 tl-run -np 2 python 'a file.py'" in printed
    assert "or, for good: DataLoader(num_workers=2); SGD(…, fused=True)" in printed
    assert written["schema"] == "tlkit.tuning/1"
    assert written["use"]["environment"] == {"TLKIT_SETTINGS": "loader.workers=2,optimizer.fused=1"}
    assert written["together"]["is_more_than_chance"]
    assert [one["kept"] for one in written["tried"] if one["setting"] == "fused-optimizer"] == ["kept"]
    assert {(one["setting"], one["how"]) for one in written["tried"] if one["gains"]} == {
        ("workers", "jobs"),
        ("fused-optimizer", "blocks"),
    }


def test_what_is_inherited_stays_below_what_is_tried() -> None:
    """And MPI needs both its flag and its variable."""
    one = Candidate(name="workers", value="2", settings={"loader.workers": "2"}, script="")
    other = Candidate(name="transport", value="mpi", environment={"HOROVOD_CPU_OPERATIONS": "mpi"}, mpi=True, script="")
    inherited = {"TLKIT_SETTINGS": "loader.workers=1,torch.threads=1", "PATH": "/bin"}

    assert environment_with([one, other], inherited) == {
        "TLKIT_SETTINGS": "loader.workers=2,torch.threads=1",
        "HOROVOD_CPU_OPERATIONS": "mpi",
    }
    command = Command(words=("tl-run", "-np", "2", "python", "t.py"), np=None)
    assert command.is_launched_here
    assert command.line(mpi=True)[-5:] == ["--mpi", "-np", "2", "python", "t.py"]
    assert not Command(words=("torchrun", "t.py"), np=None).is_launched_here


def test_jobs_are_stopped_and_their_last_line_is_kept(tmp_path: Path) -> None:
    """A process that does not listen to SIGTERM, and one that fails."""
    command = Command(words=("sh", "-c", "echo begun; echo Error: no such file >&2; exit 3"), np=None)
    failed = Jobs(command, tmp_path / "a", 0).run((), steps=20, limit_s=30)
    sleeping = Command(words=("sh", "-c", "exec sleep 60"), np=None)
    stopped = Jobs(sleeping, tmp_path / "b", 0).run((), steps=20, limit_s=0.3)

    assert (failed.status, failed.why) == (3, "the job failed: Error: no such file")
    assert stopped.timed_out
    assert "had not ended" in stopped.why
    with pytest.raises(UsageError, match="cannot start nowhere"):
        Jobs(Command(words=("nowhere",), np=None), tmp_path / "c", 0).run((), steps=20, limit_s=1)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "what to run"),
        (["-np", "0", "python", "t.py"], "at least one rank"),
        (["-np", "2", "torchrun", "t.py"], "starts ranks itself"),
        (["--minutes", "0", "python", "t.py"], "--minutes"),
        (["--minutes", "nan", "python", "t.py"], "--minutes"),
        (["--steps", "3", "python", "t.py"], "say nothing"),
        (["--only", "worker", "python", "t.py"], "did you mean workers?"),
        (["--skip", "xyzzy", "python", "t.py"], "there are workers"),
        (["--only", "workers", "--skip", "workers", "python", "t.py"], "exclude all"),
        (["--folder", "/", "python", "t.py"], "not empty"),
    ],
)
def test_wishes_that_make_no_sense_are_one_line(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And exit status 2."""
    assert main(argv) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


def test_only_and_skip_choose_settings() -> None:
    """In the order of the catalogue; the command keeps its own flags."""
    parse = make_parser().parse_args
    only = wishes_of(parse(["-np", "2", "--only", "threads,workers", "--", "python", "t.py", "--steps", "9"]))
    skip = wishes_of(parse(["--skip", "binding", "python", "t.py"]))

    assert list(only.names) == ["workers", "threads"]
    assert only.command == Command(words=("python", "t.py", "--steps", "9"), np=2)
    assert only.steps == 60
    assert set(skip.names) == set(SETTINGS) - {"binding"}
    assert str(Kept.KEPT) == "kept"


def test_settings_are_remedies_of_findings_that_exist() -> None:
    """A cause that is named anew would leave its setting without a prediction."""
    page = (TRACES.parents[1] / "docs" / "findings.md").read_text(encoding="utf-8")

    assert [cause for maker in SETTINGS.values() for cause in maker.causes if f"**{cause}**" not in page] == []
