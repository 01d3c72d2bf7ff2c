"""The HOROVOD_* settings of the runtime, read once at `init`.

A value that makes no sense is a warning and the default, never a silent zero.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...timeline.record.flight import DEFAULT_KEEP as FLIGHT_KEEP
from ...timeline.record.sampled_format import NO_STEP, Sampling
from ...timeline.record.shard_parts import DEFAULT as DEFAULT_KEEP
from ...timeline.record.shard_parts import Keep, parse_keep

_log = logging.getLogger("tlkit.runtime")

#: Settings of Horovod that change nothing here, and why.
_INEFFECTIVE = {
    "HOROVOD_HIERARCHICAL_ALLGATHER": "gathering always goes through one transport",
    "HOROVOD_TORUS_ALLREDUCE": "HOROVOD_HIERARCHICAL_ALLREDUCE=1 reduces within hosts first",
    "HOROVOD_NUM_NCCL_STREAMS": "NCCL operations run on one stream",
    "HOROVOD_MPI_THREADS_DISABLE": "MPI is called from one thread at a time anyway",
    "HOROVOD_DISABLE_GROUP_FUSION": "groups are fused with other tensors up to HOROVOD_FUSION_THRESHOLD",
}

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}


def _flag(environment: Mapping[str, str], name: str) -> bool:
    text = environment.get(name, "").strip().lower()
    if text in _TRUE:
        return True
    if text not in _FALSE:
        try:
            return float(text) > 0
        except ValueError:
            _log.warning("%s=%s is neither on nor off: treated as off", name, text)
    return False


def _number(environment: Mapping[str, str], name: str, default: float, lowest: float = 0.0) -> float:
    text = environment.get(name)
    if text is None or not text.strip():
        return default
    try:
        value = float(text)
    except ValueError:
        _log.warning("%s=%s is not a number: using %s", name, text, default)
        return default
    if not value >= lowest:
        _log.warning("%s=%s is below %s: using %s", name, text, lowest, default)
        return default
    return value


def _choice(environment: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """One of `choices`; the first is the default."""
    text = environment.get(name, "").strip().lower() or choices[0]
    if text not in choices:
        _log.warning("%s=%s is not one of %s: using %s", name, text, ", ".join(choices), choices[0])
        return choices[0]
    return text


def _cores(environment: Mapping[str, str], name: str) -> tuple[int, ...]:
    text = environment.get(name, "").strip()
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        _log.warning("%s=%s is not a list of core numbers: threads are not pinned", name, text)
        return ()


def _sampling(environment: Mapping[str, str]) -> Sampling | None:
    """HOROVOD_TIMELINE_LEVEL=steps keeps sums of all steps; HOROVOD_TIMELINE_EVERY=100:5 five steps of each hundred in full."""
    text = environment.get("HOROVOD_TIMELINE_EVERY", "").strip()
    if _choice(environment, "HOROVOD_TIMELINE_LEVEL", ("all", "steps")) == "steps":
        if text:
            _log.warning("HOROVOD_TIMELINE_EVERY=%s has no effect with HOROVOD_TIMELINE_LEVEL=steps", text)
        return NO_STEP
    if not text:
        return None
    every, _, whole = text.partition(":")
    if every.isdigit() and whole.isdigit() and 0 < int(whole) <= int(every):
        return Sampling(int(every), int(whole))
    _log.warning(
        "HOROVOD_TIMELINE_EVERY=%s is not of the form 100:5 (5 steps of every 100): all steps are recorded in full",
        text,
    )
    return None


def _keep(environment: Mapping[str, str]) -> Keep | None:
    """How much of a timeline stays, or of what the flight recorder records."""
    in_flight = environment.get("HOROVOD_FLIGHT_RECORDER") and not environment.get("HOROVOD_TIMELINE")
    default = FLIGHT_KEEP if in_flight else DEFAULT_KEEP
    text = environment.get("HOROVOD_TIMELINE_KEEP", "").strip()
    if not text:
        return default
    try:
        return parse_keep(text)
    except ValueError as error:
        _log.warning("HOROVOD_TIMELINE_KEEP=%s: using %s", error, default.said)
        return default


def warn_of_ineffective(environment: Mapping[str, str] = os.environ) -> None:
    """Say which settings that are on do nothing here."""
    for name, why in _INEFFECTIVE.items():
        if environment.get(name, "").strip().lower() not in _FALSE:
            _log.warning("%s has no effect: %s", name, why)


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """What the environment asks of the runtime.  Times in the unit of their name."""

    timeline: str | None = None
    """Path, `DYNAMIC`, or None when HOROVOD_TIMELINE is unset."""
    mark_cycles: bool = False
    timeline_format: str = "tlkit"
    """`tlkit`, or `horovod` for Horovod's own file, on rank 0 alone."""
    flight_recorder: str = ""
    """Folder to record into all the time; "" for none."""
    sampling: Sampling | None = None
    """Which steps a timeline holds in full; None for all."""
    keep: Keep | None = DEFAULT_KEEP
    """How much of a timeline stays; None for everything."""
    fusion_threshold_nbytes: int = 128 * 1024 * 1024
    cycle_time_s: float = 0.001
    small_tensor_nbytes: int = 8192
    """Tensors up to this travel in the messages of the control plane; 0 for none."""
    cache_capacity: int = 8192
    cpu_operations: str = ""
    gpu_operations: str = ""
    fusion_threshold_is_set: bool = False
    cycle_time_is_set: bool = False
    hierarchical_allreduce: bool = False
    dynamic_process_sets: bool = False
    autotune: bool = False
    autotune_log: str = ""
    autotune_warmup_samples: int = 3
    autotune_steps_per_sample: int = 10
    autotune_max_samples: int = 20
    autotune_noise: float = 0.8
    gloo_timeout_s: float = 30.0
    gloo_interface: str = ""
    start_timeout_s: float = 30.0
    sample_interval_s: float = 1.0
    """Between samples of counters; 0 for none."""
    thread_affinity: tuple[int, ...] = ()
    """Cores for the control plane's thread, by local rank."""
    stall_check: bool = True
    stall_warning_s: float = 60.0
    stall_shutdown_s: float = 0.0

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> "Config":
        """Read all settings."""
        return Config(
            timeline=environment.get("HOROVOD_TIMELINE"),
            mark_cycles=_flag(environment, "HOROVOD_TIMELINE_MARK_CYCLES"),
            timeline_format=_choice(environment, "HOROVOD_TIMELINE_FORMAT", ("tlkit", "horovod")),
            flight_recorder=environment.get("HOROVOD_FLIGHT_RECORDER", "").strip(),
            sampling=_sampling(environment),
            keep=_keep(environment),
            fusion_threshold_nbytes=int(_number(environment, "HOROVOD_FUSION_THRESHOLD", 128 * 1024 * 1024)),
            small_tensor_nbytes=int(_number(environment, "HOROVOD_SMALL_TENSOR_BYTES", 8192)),
            cycle_time_s=_number(environment, "HOROVOD_CYCLE_TIME", 1.0) / 1e3,
            cache_capacity=int(_number(environment, "HOROVOD_CACHE_CAPACITY", 8192)),
            cpu_operations=environment.get("HOROVOD_CPU_OPERATIONS", "").strip().lower(),
            gpu_operations=(environment.get("HOROVOD_GPU_OPERATIONS") or environment.get("HOROVOD_GPU_ALLREDUCE") or "")
            .strip()
            .lower(),
            fusion_threshold_is_set=bool(environment.get("HOROVOD_FUSION_THRESHOLD")),
            cycle_time_is_set=bool(environment.get("HOROVOD_CYCLE_TIME")),
            hierarchical_allreduce=_flag(environment, "HOROVOD_HIERARCHICAL_ALLREDUCE"),
            dynamic_process_sets=_flag(environment, "HOROVOD_DYNAMIC_PROCESS_SETS"),
            autotune=_flag(environment, "HOROVOD_AUTOTUNE"),
            autotune_log=environment.get("HOROVOD_AUTOTUNE_LOG", ""),
            autotune_warmup_samples=int(_number(environment, "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", 3)),
            autotune_steps_per_sample=int(_number(environment, "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", 10, 1)),
            autotune_max_samples=int(_number(environment, "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", 20, 1)),
            autotune_noise=_number(environment, "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", 0.8),
            gloo_timeout_s=_number(environment, "HOROVOD_GLOO_TIMEOUT_SECONDS", 30.0),
            gloo_interface=environment.get("HOROVOD_GLOO_IFACE", "").strip(),
            start_timeout_s=_number(environment, "HOROVOD_START_TIMEOUT", 30.0),
            sample_interval_s=_number(environment, "TLKIT_SAMPLE_SECONDS", 1.0),
            thread_affinity=_cores(environment, "HOROVOD_THREAD_AFFINITY"),
            stall_check=not _flag(environment, "HOROVOD_STALL_CHECK_DISABLE"),
            stall_warning_s=_number(environment, "HOROVOD_STALL_CHECK_TIME_SECONDS", 60.0),
            stall_shutdown_s=_number(environment, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0),
        )

    @property
    def timeline_path(self) -> str | None:
        """The file to write from the start; None for no timeline, or one that the script starts."""
        return self.timeline if self.timeline and self.timeline != "DYNAMIC" else None
