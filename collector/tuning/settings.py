"""The settings that tl-tune can try: what each is set to, how it reaches the ranks, and which findings ask for it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Final

from ...timeline.trials import (
    BINDING,
    BUCKET_CAP,
    BUCKET_VIEW,
    COMPRESSION,
    DDP_COMPRESSION,
    FUSED,
    LIVE_CYCLE,
    LIVE_FUSION,
    PERSISTENT,
    PIN_MEMORY,
    PREFETCH,
    THREADS,
    WORKERS,
    LoaderSeen,
    Seen,
)
from ..analysis import Analysis
from ..findings import Finding

_MIB: Final = 1 << 20
#: More loader workers of a rank than this are not tried.
MAX_WORKERS: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One setting at one value."""

    name: str
    """Of the setting, as --only and --skip have it."""
    value: str
    """For people."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of TLKIT_SETTINGS."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Other variables."""
    mpi: bool = False
    """Whether tl-run gets --mpi."""
    script: str
    """What to write into the script instead, or where else the setting can stand."""
    is_live: bool = False
    """Whether it can change while a job runs."""
    is_lossy: bool = False
    """Whether it changes results by what it is."""
    finding: Finding | None = field(default=None, compare=False, repr=False)
    """Which asks for it."""

    @property
    def predicted(self) -> float | None:
        """Share of the step time that the finding expects to go; None for a setting that is tried because it may help."""
        return None if self.finding is None else self.finding.predicted_gain

    @property
    def label(self) -> str:
        """Name and value."""
        return f"{self.name} {self.value}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What is known of a run, where settings are chosen."""

    seen: Seen
    findings: Sequence[Finding]
    launched_here: bool
    has_mpi: bool
    data_ratio: float
    """Share of the step that waits for data."""

    @property
    def loader(self) -> LoaderSeen | None:
        """The loader that the training iterates over most; the first of several."""
        return max(self.seen.loaders, key=lambda loader: loader.epochs, default=None)

    @property
    def cores(self) -> int:
        """Of a rank."""
        return max(1, self.seen.cores // max(self.seen.local_size, 1))


def known_of(analysis: Analysis, seen: Seen, *, launched_here: bool) -> Known:
    """What a recorded run and its ranks tell."""
    step_ns = max(analysis.facts.mean_step_ns, 1.0)
    data_ns = float(analysis.facts.part("data").mean()) if analysis.facts.steps.count else 0.0
    return Known(
        seen=seen,
        findings=analysis.findings,
        launched_here=launched_here,
        has_mpi=find_spec("mpi4py") is not None,
        data_ratio=data_ns / step_ns,
    )


def _transport(known: Known) -> list[Candidate]:
    seen = known.seen
    if seen.runtime != "hvd" or not known.launched_here or seen.device != "cpu":
        return []
    if seen.transport != "gloo" or seen.local_size < 2:  # noqa: PLR2004  nobody to talk to
        return []
    if seen.shares_memory:
        shared = {"HOROVOD_CPU_OPERATIONS": "shm"}
        return [Candidate(name="transport", value="shm", environment=shared, script="HOROVOD_CPU_OPERATIONS=shm")]
    if not known.has_mpi:
        return []
    return [
        Candidate(
            name="transport",
            value="mpi",
            environment={"HOROVOD_CPU_OPERATIONS": "mpi"},
            mpi=True,
            script="tl-run --mpi",
        )
    ]


def _fusion(known: Known) -> list[Candidate]:
    if known.seen.runtime != "hvd" or known.seen.hosts * known.seen.local_size < 2:  # noqa: PLR2004  as above
        return []
    now = known.seen.fusion_threshold_nbytes
    wanted = [128 * _MIB] if now < 32 * _MIB else [8 * _MIB]
    if now < _MIB:
        wanted = [128 * _MIB, 8 * _MIB]
    return [
        Candidate(
            name="fusion",
            value=f"{nbytes // _MIB} MiB",
            environment={LIVE_FUSION: str(nbytes)},
            script=f"tl-run --fusion-threshold-mb {nbytes // _MIB}",
            # Buckets of gradients are laid out once, by the threshold of the start.
            is_live=not known.seen.lays_out,
        )
        for nbytes in wanted
    ]


def _cycle(known: Known) -> list[Candidate]:
    if known.seen.runtime != "hvd" or known.seen.hosts * known.seen.local_size < 2:  # noqa: PLR2004  as above
        return []
    now = known.seen.cycle_time_ms
    wanted = [ms for ms in (1.0, 0.1, 5.0) if not 0.5 * now <= ms <= 2 * now]
    return [
        Candidate(
            name="cycle",
            value=f"{ms:g} ms",
            environment={LIVE_CYCLE: f"{ms:g}"},
            script=f"tl-run --cycle-time-ms {ms:g}",
            is_live=True,
        )
        for ms in wanted
    ]


def _threads(known: Known) -> list[Candidate]:
    wanted = {known.cores, 1}
    if known.seen.hosts == 1 and known.seen.local_size == 1:
        wanted.add(max(1, known.cores // 2))
    return [
        Candidate(
            name="threads",
            value=str(count),
            settings={THREADS: str(count)},
            script=f"torch.set_num_threads({count})",
            is_live=True,
        )
        for count in sorted(wanted - {known.seen.threads}, reverse=True)
        if known.seen.device == "cpu" or count == 1
    ]


def _binding(known: Known) -> list[Candidate]:
    if known.seen.local_size < 2 or known.seen.cores < known.seen.local_size:  # noqa: PLR2004  nothing to divide
        return []
    return [
        Candidate(
            name="binding",
            value="cores divided among ranks",
            settings={BINDING: "ranks"},
            script="os.sched_setaffinity(0, cores_of_this_rank) before the first tensor",
        )
    ]


def _workers(known: Known) -> list[Candidate]:
    loader = known.loader
    if loader is None:
        return []
    finding = _first(known, ("slow-loader", "slow-loader-on-some-ranks", "starved-of-cores"))
    wanted: list[int] = []
    if finding is not None and finding.class_ == "data":
        evidence: Mapping[str, Any] = finding.evidence
        fetch_ns, step_ns = float(evidence.get("fetch_ns", 0)), _busy_ns(finding)
        needed = min(max(math.ceil(1.2 * fetch_ns / step_ns), 1), MAX_WORKERS)
        wanted = [needed, min(2 * needed, MAX_WORKERS), known.cores]  # what the diagnosis says goes first
    elif loader.workers * known.seen.local_size > known.seen.cores:
        wanted = [known.cores]
    elif not loader.workers and known.data_ratio > 0.02:  # noqa: PLR2004  waits worth a worker
        wanted = [1]
    return [
        Candidate(
            name="workers",
            value=str(count),
            settings={WORKERS: str(count)} | ({PERSISTENT: "1"} if loader.epochs > 1 else {}),
            script=f"DataLoader(num_workers={count}{', persistent_workers=True' if loader.epochs > 1 else ''})",
        )
        for count in dict.fromkeys(wanted)
        if count != loader.workers
    ]


def _busy_ns(finding: Finding) -> float:
    """What a step takes beside the wait for data."""
    wait_ns = float(finding.evidence.get("mean_wait_ns", 0))
    gain = min(max(finding.predicted_gain, 0.01), 0.99)
    return max(wait_ns / gain * (1 - gain), 1e5)


def _prefetch(known: Known) -> list[Candidate]:
    loader = known.loader
    if loader is None or not loader.workers or known.data_ratio <= 0.02:  # noqa: PLR2004  nothing to wait for
        return []
    count = 4 * (loader.prefetch or 2)
    return [
        Candidate(
            name="prefetch",
            value=str(count),
            settings={PREFETCH: str(count)},
            script=f"DataLoader(prefetch_factor={count})",
        )
    ]


def _persistent(known: Known) -> list[Candidate]:
    loader = known.loader
    if loader is None or not loader.workers or loader.persistent or loader.epochs < 2:  # noqa: PLR2004  one start
        return []
    return [
        Candidate(
            name="persistent", value="on", settings={PERSISTENT: "1"}, script="DataLoader(persistent_workers=True)"
        )
    ]


def _pin_memory(known: Known) -> list[Candidate]:
    loader = known.loader
    if loader is None or loader.pin_memory or known.seen.device != "cuda":
        return []
    return [Candidate(name="pin-memory", value="on", settings={PIN_MEMORY: "1"}, script="DataLoader(pin_memory=True)")]


def _compression(known: Known) -> list[Candidate]:
    if known.seen.compression or known.seen.hosts * known.seen.local_size < 2:  # noqa: PLR2004  nothing to send
        return []
    if known.seen.ddp:
        key, value, line = DDP_COMPRESSION, "bf16", "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
    elif known.seen.runtime == "hvd":
        key, value, line = COMPRESSION, "fp16", "DistributedOptimizer(compression=hvd.Compression.fp16)"
    else:
        return []
    return [Candidate(name="compression", value=value, settings={key: value}, script=line, is_lossy=True)]


def _hierarchical(known: Known) -> list[Candidate]:
    if known.seen.runtime != "hvd" or known.seen.hosts < 2 or known.seen.local_size < 2:  # noqa: PLR2004  one level
        return []
    return [
        Candidate(
            name="hierarchical",
            value="on",
            environment={"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"},
            script="tl-run --hierarchical-allreduce",
        )
    ]


def _bucket_view(known: Known) -> list[Candidate]:
    if not known.seen.ddp or known.seen.bucket_view:
        return []
    return [
        Candidate(
            name="bucket-view",
            value="on",
            settings={BUCKET_VIEW: "1"},
            script="DistributedDataParallel(gradient_as_bucket_view=True)",
        )
    ]


def _bucket_size(known: Known) -> list[Candidate]:
    if not known.seen.ddp:
        return []
    return [
        Candidate(
            name="bucket-size",
            value=f"{mib} MiB",
            settings={BUCKET_CAP: str(mib)},
            script=f"DistributedDataParallel(bucket_cap_mb={mib})",
        )
        for mib in (100, 5)
        if not 0.5 * known.seen.bucket_cap_mb <= mib <= 2 * known.seen.bucket_cap_mb
    ]


def _fused(known: Known) -> list[Candidate]:
    if known.seen.fused is not False:
        return []
    return [
        Candidate(
            name="fused-optimizer",
            value="on",
            settings={FUSED: "1"},
            script=f"{known.seen.optimizer}(…, fused=True)",
            # On a device its state lies elsewhere.
            is_live=known.seen.device == "cpu",
        )
    ]


@dataclass(frozen=True, slots=True)
class _Maker:
    make: Callable[[Known], list[Candidate]]
    causes: tuple[str, ...]
    """Of findings whose remedy it is."""


#: In the order in which they are tried where no finding says more.
SETTINGS: Final[Mapping[str, _Maker]] = {
    "workers": _Maker(_workers, ("slow-loader", "slow-loader-on-some-ranks")),
    "persistent": _Maker(_persistent, ("worker-start-up",)),
    "transport": _Maker(_transport, ("wrong-backend",)),
    "threads": _Maker(_threads, ("too-many-threads", "starved-of-cores")),
    "fusion": _Maker(_fusion, ("many-small-collectives", "high-latency")),
    "cycle": _Maker(_cycle, ("slow-negotiation", "long-cycle")),
    "bucket-view": _Maker(_bucket_view, ("bucket-copies",)),
    "fused-optimizer": _Maker(_fused, ("slow-optimizer-step",)),
    "prefetch": _Maker(_prefetch, ("slow-loader", "slow-loader-on-some-ranks")),
    "pin-memory": _Maker(_pin_memory, ("slow-copies-to-device",)),
    "bucket-size": _Maker(_bucket_size, ("many-small-collectives", "late-gradients", "high-latency")),
    "hierarchical": _Maker(_hierarchical, ("slow-link",)),
    "binding": _Maker(_binding, ()),
    "compression": _Maker(_compression, ("bandwidth-bound", "slow-link")),
}


def _first(known: Known, causes: Sequence[str]) -> Finding | None:
    """The finding of one of these causes that expects most; None for none."""
    fitting = [finding for finding in known.findings if finding.cause in causes and finding.predicted_gain > 0]
    return max(fitting, key=lambda finding: finding.predicted_gain, default=None)


def propose(known: Known, names: Sequence[str]) -> list[Candidate]:
    """What to try, the largest predicted gain first, then what may help.

    Args:
        names: settings to consider.
    """
    found: list[Candidate] = []
    for name, maker in SETTINGS.items():
        if name in names:
            finding = _first(known, maker.causes)
            found += [replace(candidate, finding=finding) for candidate in maker.make(known)]
    return sorted(found, key=lambda candidate: -(candidate.predicted or 0.0))


def reached(candidate: Candidate, seen: Seen) -> bool:
    """Whether the ranks have found the setting in force: a script may make a loader before it could be changed."""
    checks: Mapping[str, Callable[[str], bool]] = {
        WORKERS: lambda value: any(str(loader.workers) == value for loader in seen.loaders),
        PREFETCH: lambda value: any(str(loader.prefetch) == value for loader in seen.loaders),
        PERSISTENT: lambda _: any(loader.persistent for loader in seen.loaders),
        PIN_MEMORY: lambda _: any(loader.pin_memory for loader in seen.loaders),
        FUSED: lambda _: bool(seen.fused),
        BUCKET_VIEW: lambda _: seen.bucket_view,
        THREADS: lambda value: str(seen.threads) == value,
    }
    found = all(checks[name](value) for name, value in candidate.settings.items() if name in checks)
    return found and (candidate.name != "transport" or seen.transport == candidate.value)
