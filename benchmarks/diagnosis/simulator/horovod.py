"""Writes a recording as Horovod itself does: rank 0's communication in one file, a row a tensor."""

from pathlib import Path
from typing import Final

from tlkit.timeline.record.horovod_format import HorovodFormat
from tlkit.timeline.record.shard_format import ShardClock, ShardHeader, TensorLife

from .jobs import Job
from .recording import Executed, Recording

_COMMUNICATION: Final = 3
_EPOCH_NS: Final = 1_790_000_000_000_000_000
#: What happens before the first step.
_START_NS: Final = 1_500_000_000
_OPERATIONS: Final = {"allreduce": "GLOO_ALLREDUCE", "broadcast": "GLOO_BCAST", "barrier": "GLOO_BARRIER"}


def write_horovod(recording: Recording, job: Job, folder: Path, *, has_cache: bool) -> None:
    """One file in `folder`.

    Args:
        has_cache: as Horovod is by default; ranks' ready ticks are only there when a tensor is seen for the first time then.
    """
    header = ShardHeader(
        run_id="simulated",
        rank=0,
        size=job.ranks,
        local_rank=0,
        host="host-0",
        boot_id="boot-0",
        process_id=4000,
        device="cpu",
        clock=ShardClock(origin_ns=-_START_NS, origin_unix_ns=_EPOCH_NS),
    )
    form = HorovodFormat(header)
    lines = form.head()
    seen: set[str] = set()
    for executed in recording.ranks[0].executed:
        names = {carried.tensor.name for carried in executed.carried}
        has_ticks = not has_cache or not names <= seen
        seen |= names
        lines += _collective(form, executed, has_ticks=has_ticks)
    text = "".join(lines).rstrip().rstrip(",")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "timeline.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")


def _collective(form: HorovodFormat, executed: Executed, *, has_ticks: bool) -> list[str]:
    arrivals = [(at_ns + _START_NS) / 1e3 for at_ns in executed.arrivals_ns] if has_ticks else []
    start_ns, end_ns = executed.start_ns, executed.end_ns
    moved = executed.operation_ns
    for name, begun_ns, ended_ns in (
        ("MEMCPY_IN_FUSION_BUFFER", start_ns, moved[0]),
        (_OPERATIONS[executed.kind], *moved),
        ("MEMCPY_OUT_FUSION_BUFFER", moved[1], end_ns),
    ):
        if begun_ns < ended_ns:
            form.span(name, "collective", _COMMUNICATION, begun_ns, ended_ns, None)
    form.span(executed.kind.upper(), "collective", _COMMUNICATION, start_ns, end_ns, {"arrivals": arrivals})
    # The coordinator notes who asks first; with the cache it sees nothing before it has asked itself.
    first_ns = min(executed.arrivals_ns)
    lives = [
        TensorLife(
            number,
            carried.tensor.name,
            executed.kind,
            carried.tensor.nbytes,
            "float32",
            [carried.tensor.nbytes // 4],
            min(carried.submitted_ns, first_ns) if has_ticks else carried.submitted_ns,
            False,  # noqa: FBT003
        )
        for number, carried in enumerate(executed.carried)
    ]
    return [form.lives(lives, executed.process_set, executed.seq, (executed.negotiated_ns, start_ns, end_ns))]
