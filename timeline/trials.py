"""What `tl-tune` and the ranks of its trials tell each other: settings, what a trial shall do, and what it has measured.

The two know nothing else of each other.  A rank learns from its environment: TLKIT_SETTINGS has values for what a script
chooses itself (`loader.workers=2,torch.threads=1`), and holds for any run; TLKIT_TRIAL has a `TrialPlan`.  Each rank of a trial
leaves a `RankTrial` in the plan's folder.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from .errors import UsageError

#: Names of the variables.
SETTINGS_VARIABLE: Final = "TLKIT_SETTINGS"
TRIAL_VARIABLE: Final = "TLKIT_TRIAL"

THREADS: Final = "torch.threads"
BINDING: Final = "cpu.binding"
WORKERS: Final = "loader.workers"
PREFETCH: Final = "loader.prefetch"
PERSISTENT: Final = "loader.persistent"
PIN_MEMORY: Final = "loader.pin_memory"
FUSED: Final = "optimizer.fused"
COMPRESSION: Final = "hvd.compression"
BUCKET_VIEW: Final = "ddp.gradient_as_bucket_view"
BUCKET_CAP: Final = "ddp.bucket_cap_mb"
DDP_COMPRESSION: Final = "ddp.compression"

#: What TLKIT_SETTINGS may hold: the least whole number, or the words.
SETTINGS: Final[Mapping[str, int | tuple[str, ...]]] = {
    THREADS: 1,
    BINDING: ("ranks",),
    WORKERS: 0,
    PREFETCH: 1,
    PERSISTENT: ("0", "1"),
    PIN_MEMORY: ("0", "1"),
    FUSED: ("0", "1"),
    COMPRESSION: ("none", "fp16"),
    BUCKET_VIEW: ("0", "1"),
    BUCKET_CAP: 1,
    DDP_COMPRESSION: ("bf16", "fp16"),
}

#: Variables of the runtime that can change while a job runs, as keys of a block's settings.
LIVE_FUSION: Final = "HOROVOD_FUSION_THRESHOLD"
LIVE_CYCLE: Final = "HOROVOD_CYCLE_TIME"


def parse_settings(text: str) -> dict[str, str]:
    """TLKIT_SETTINGS as names and values.

    Raises:
        UsageError: a name is unknown, or a value makes no sense.

    >>> parse_settings("loader.workers=2, optimizer.fused=1")
    {'loader.workers': '2', 'optimizer.fused': '1'}
    """
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in SETTINGS:
            raise UsageError(f"{SETTINGS_VARIABLE}: {name} is not a setting; the settings are {', '.join(SETTINGS)}")
        allowed = SETTINGS[name]
        if isinstance(allowed, tuple):
            if value not in allowed:
                raise UsageError(f"{SETTINGS_VARIABLE}: {name}={value}: choose {' or '.join(allowed)}")
        elif not (value.isascii() and value.isdigit() and int(value) >= allowed):
            raise UsageError(f"{SETTINGS_VARIABLE}: {name}={value}: a whole number of at least {allowed} is needed")
        found[name] = value
    return found


def format_settings(settings: Mapping[str, str]) -> str:
    """The value of TLKIT_SETTINGS.

    >>> format_settings({"loader.workers": "2", "optimizer.fused": "1"})
    'loader.workers=2,optimizer.fused=1'
    """
    return ",".join(f"{name}={value}" for name, value in settings.items())


class Block(msgspec.Struct, frozen=True):
    """Some steps of a trial with settings that change while the job runs."""

    steps: int
    settings: dict[str, str] = {}
    """`torch.threads`, `optimizer.fused` (on processors), HOROVOD_FUSION_THRESHOLD and HOROVOD_CYCLE_TIME.

    What is not here is as it was at the start.
    """


class TrialPlan(msgspec.Struct, frozen=True):
    """What a rank shall do."""

    folder: str
    """Existing folder for the ranks' answers."""
    steps: int
    """The job ends after so many, if it has not ended by itself."""
    seed: int | None = None
    """For the random numbers of Python, NumPy and torch, before the script seeds them itself; None to leave them."""
    blocks: list[Block] = []
    """In turn; the last one stays to the end."""


class LoaderSeen(msgspec.Struct, frozen=True):
    """A DataLoader that the training iterates over."""

    workers: int
    prefetch: int | None
    persistent: bool
    pin_memory: bool
    is_iterable: bool
    """Of an IterableDataset, whose order depends on the number of workers."""
    epochs: int
    """How often an iteration over it has begun."""


class Seen(msgspec.Struct, frozen=True):
    """What a rank has found its training to be."""

    runtime: str
    """`hvd` or `torch`."""
    transport: str
    """Of processors' tensors: shm, gloo, mpi, or "" where it is not ours."""
    device: str
    local_size: int
    hosts: int
    cores: int
    """That this process may use."""
    threads: int
    fusion_threshold_nbytes: int
    cycle_time_ms: float
    lays_out: bool
    """Whether gradients lie in buckets, which are made once, by the fusion threshold of the start."""
    loaders: list[LoaderSeen]
    optimizer: str
    fused: bool | None
    """None where the optimizer has no fused form."""
    ddp: bool
    bucket_view: bool
    bucket_cap_mb: float
    compression: bool
    shares_memory: bool = False
    """Whether ranks of one host could move their bytes through memory that they share."""


class RankTrial(msgspec.Struct, frozen=True):
    """What a rank has measured."""

    rank: int
    size: int
    begun_ns: int
    """When the rank was ready, by its monotonic clock."""
    ends_ns: list[int]
    """When each step ended."""
    losses: list[float | None]
    """Of each step: the mean of what `backward` was called for; None if that was no number."""
    seen: Seen
    ended_itself: bool
    """Whether the script came to its end before the plan did."""


def trial_path(folder: str | Path, rank: int) -> Path:
    """Where a rank writes its answer."""
    return Path(folder) / f"rank{rank}.json"


def encode_plan(plan: TrialPlan) -> str:
    """The value of TLKIT_TRIAL."""
    return msgspec.json.encode(plan).decode()


def decode_plan(text: str) -> TrialPlan:
    """The plan in TLKIT_TRIAL.

    Raises:
        UsageError: it is none.
    """
    try:
        return msgspec.json.decode(text.encode(), type=TrialPlan)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{TRIAL_VARIABLE} is set by tl-tune, and not like this: {error}") from error


def read_trials(folder: str | Path) -> list[RankTrial]:
    """The answers of all ranks that have left one, by rank; what cannot be read is left out."""
    found = []
    for path in sorted(Path(folder).glob("rank*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=RankTrial))
        except (OSError, msgspec.MsgspecError):
            continue
    return sorted(found, key=lambda trial: trial.rank)
