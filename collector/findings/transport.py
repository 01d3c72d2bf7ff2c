"""The way the bytes take: a link that is slower than it should be, or a backend that is slower than another."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from ..facts import Facts
from ..model.bandwidth import bus_factor
from ..model.words import milliseconds
from ..predict.change import Change
from ..predict.costs import fitted_latency_ns
from .base import OF_TRANSPORT, WORTH_RATIO, Finding, promise
from .callers import called_by_user, is_called_by_user

#: Any network of today carries as much: one gigabit a second.
SLOW_GBPS: Final = 0.125
#: What a link is compared with: ten gigabits a second.
GOOD_GBPS: Final = 1.25
#: Shorter transfers say nothing of the link, and neither do smaller ones.
MIN_NS: Final = 3e6
MIN_NBYTES: Final = 64 * 1024
#: A collective of any size takes less on a network that is not congested or far.
GOOD_LATENCY_NS: Final = 1e6
#: Open MPI through shared memory on one host, by benchmarks/collectives.py: what one collective costs, and its bus bandwidth.
SHARED_MEMORY_NS: Final = 5e5
SHARED_MEMORY_GBPS: Final = 2.2
#: A host that is busier than this has no cores left for a transport that waits by spinning.
MAX_BUSY_RATIO: Final = 0.97
#: A thread that shares its core loses it for as long at a time; where cores lack, often twice in a row.
TIME_SLICE_NS: Final = 4e6
#: A collective takes turns of several threads of each rank: where cores lack, each of them may have to wait for one.
SLICES_IN_A_ROW: Final = 4
#: For less nobody installs another transport.
WORTH_A_CHANGE_OF_TRANSPORT: Final = 0.1


def _large(facts: Facts) -> pd.DataFrame:
    table = facts.in_steps(facts.collectives)
    return table[(table["kind"] != "barrier") & (table["nbytes"] >= MIN_NBYTES)]


def _link_ns(facts: Facts) -> tuple[float, float]:
    """Bytes over the bus of the largest usual collectives, and the time that these take when nothing else disturbs (ns).

    The tenth percentile: a busy processor makes some transfers slow, a slow link all of them.  What collectives of few
    bytes would take, too, is not the link's.
    """
    large = _large(facts)
    if large.empty:
        return 0.0, 0.0
    latency_ns = fitted_latency_ns(large["nbytes"].to_numpy(float), large["transfer_ns"].to_numpy(float))
    large = large[large["nbytes"] >= large["nbytes"].median()]
    factors = large["kind"].astype(str).map(lambda kind: bus_factor(kind, facts.trace.meta.size)).astype(float)
    over_bus = large["nbytes"] * factors
    per_byte = (large["transfer_ns"] - latency_ns).clip(lower=0.0) / over_bus.clip(lower=1.0)
    return float(over_bus.median()), float(per_byte.quantile(0.1) * over_bus.median())


def is_slow_link(facts: Facts) -> bool:
    """Whether the bytes move more slowly than over any network of today.

    On one host there is no link: what makes collectives slow there is lack of cores, or of the interpreter's lock.
    """
    return not is_one_host(facts) and _is_slower_than_networks(facts)


def _is_slower_than_networks(facts: Facts) -> bool:
    nbytes, took_ns = _link_ns(facts)
    return took_ns >= MIN_NS and nbytes / took_ns < SLOW_GBPS


class SlowLink:
    """The link between the ranks is the bottleneck: a tenth of what a network carries, or less."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.replay is None or not is_slow_link(facts):
            return []
        nbytes, took_ns = _link_ns(facts)
        speed = nbytes / took_ns
        latency_ns = facts.replay.costs.base_ns
        asked = facts.trace.tensors
        asked = asked[(asked["submitted_ns"] >= 0) & (asked["negotiated_ns"] >= 0)]
        asking_ns = float((asked["negotiated_ns"] - asked["submitted_ns"]).quantile(0.1)) if len(asked) else 0.0
        outcome = facts.outcome(
            Change(
                transfer=speed / GOOD_GBPS,
                latency=min(1.0, max(GOOD_LATENCY_NS, nbytes / GOOD_GBPS) / max(latency_ns, 1.0)),
                # Agreement travels over the same link.
                negotiation=GOOD_LATENCY_NS / asking_ns if asking_ns > 2 * GOOD_LATENCY_NS else 1.0,
            )
        )
        if outcome.gain < WORTH_RATIO / 2:
            return []
        hosts = sorted(set(facts.trace.meta.hosts.values()))
        shared = len(hosts) > 1 and len(facts.trace.meta.hosts) > len(hosts)
        is_torch = facts.trace.meta.runtime == "torch"
        compress = (
            "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
            if is_torch
            else "DistributedOptimizer(compression=hvd.Compression.fp16)"
        )
        interface = "GLOO_SOCKET_IFNAME" if is_torch else "HOROVOD_GLOO_IFACE"
        local = " HOROVOD_HIERARCHICAL_ALLREDUCE=1 reduces within hosts first." if shared and not is_torch else ""
        between = f"between the hosts {', '.join(hosts[:8])}" if len(hosts) > 1 else "between the ranks"
        return [
            promise(
                outcome,
                class_="communication",
                cause="slow-link",
                ranks=facts.ranks,
                confidence=0.85,
                evidence={
                    "busbw_gbps": round(speed, 5),
                    "compared_with_gbps": GOOD_GBPS,
                    "bytes_over_bus": round(nbytes),
                    "transfer_ns": round(took_ns),
                    "hosts": hosts,
                },
                remedy=(
                    f"Find out what slows the network {between} (ethtool, iperf3, a limit set with tc, a wrong interface: "
                    f"{interface} or NCCL_SOCKET_IFNAME chooses it); until then send fewer bytes: {compress}.{local}"
                ),
                sentence=(
                    f"The link {between} carries {speed * 1e3:.0f} MB/s, less than a gigabit a second: "
                    f"{nbytes / 1e6:.1f} MB take {milliseconds(took_ns)}."
                ),
            )
        ]


def fits_shared_memory(facts: Facts) -> bool:
    """Whether all ranks are on one host and yet talk through sockets, on processors."""
    if facts.trace.meta.runtime == "torch":
        return False  # PyTorch's own wheels have no MPI to change to
    if not is_one_host(facts) or lacks_cores(facts):
        return False
    algorithms = set(facts.collectives["algorithm"].astype(str).str.lower())
    return (
        bool(algorithms) and algorithms <= {"gloo", "control", ""} and "gloo" in algorithms and not is_slow_link(facts)
    )


def is_one_host(facts: Facts) -> bool:
    """Whether all ranks are known to share a host: the same name, and each with a local number of its own."""
    meta = facts.trace.meta
    local = set(meta.local_ranks.values())
    return (
        len(set(meta.hosts.values())) == 1
        and len(meta.hosts) >= max(meta.size, 2)
        and (not local or len(local) == len(meta.local_ranks))
    )


def lacks_cores(facts: Facts) -> bool:
    """Whether the ranks have too few cores: another transport would wait for them all the same, or take more of them."""
    load = facts.host_load
    return load is not None and (load.is_heavy or (load.busy_ratio or 0.0) > MAX_BUSY_RATIO)


def others_take_cores(facts: Facts) -> bool:
    """Whether other programs have much of a host."""
    load = facts.host_load
    return load is not None and load.takes_cores


def within_time_slice(facts: Facts, excess_ns: np.ndarray, *, without_cores: int = 2) -> bool:
    """Whether the ranks share the cores of a host, and lose no more in slow steps than one of them takes from another by chance.

    Args:
        excess_ns: float[step], 0 in the usual steps.
        without_cores: how many time slices one loses in a row by chance where cores lack.
    """
    if facts.breakdown.on_device or not is_one_host(facts):
        return False
    slices = without_cores if lacks_cores(facts) else 1
    return float(excess_ns[excess_ns > 0].mean()) <= slices * TIME_SLICE_NS


class WrongBackend:
    """Gloo moves bytes through sockets where ranks of one host could share memory."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.replay is None or not fits_shared_memory(facts):
            return []
        table = facts.in_steps(facts.collectives)
        table = table[(table["kind"] != "barrier") & (table["nbytes"] >= 0) & ~is_called_by_user(table)]
        if table.empty:
            return []
        per_step = max(facts.steps.count * len(facts.ranks), 1)
        # Each size at its quickest: a processor that is busy elsewhere is no reason to change the transport.
        now_ns = table.groupby("nbytes")["transfer_ns"].transform(lambda took: took.quantile(0.1)).to_numpy(dtype=float)
        then_ns = _through_memory_ns(facts, table["nbytes"], table["kind"])
        factor = float(np.minimum(now_ns, then_ns).sum() / max(now_ns.sum(), 1.0))
        outcome = facts.outcome(_through_memory(facts))
        if outcome.gain < WORTH_A_CHANGE_OF_TRANSPORT:
            return []
        return [
            promise(
                outcome,
                class_="communication",
                cause="wrong-backend",
                ranks=facts.ranks,
                # Slower than any network: something is wrong with it.
                order_gain=None if _is_slower_than_networks(facts) else OF_TRANSPORT * outcome.gain,
                confidence=0.7,
                evidence={
                    "backend": "gloo",
                    "times_faster": round(1 / max(factor, 1e-3), 1),
                    "median_transfer_ns": round(float(np.median(now_ns))),
                    "with_shared_memory_ns": round(float(np.median(np.minimum(now_ns, then_ns)))),
                },
                remedy="Move bytes through memory that the ranks share: HOROVOD_CPU_OPERATIONS=shm (tlkit's default on one "
                "host), or with Horovod MPI (HOROVOD_CPU_OPERATIONS=MPI under mpirun); on GPUs NCCL.",
                sentence=(
                    f"All ranks are on one host and Gloo carries {float(table['nbytes'].sum()) / per_step / 1e6:.1f} MB "
                    f"a step through sockets, "
                    f"{milliseconds(float(now_ns.sum()) / per_step)} of transfers; through "
                    f"shared memory they would take {1 / max(factor, 1e-3):.1f} times less."
                ),
            )
        ]


def _through_memory_ns(facts: Facts, nbytes: pd.Series, kind: pd.Series) -> np.ndarray:
    """What collectives would take through shared memory: float[row]."""
    factors = kind.astype(str).map(lambda name: bus_factor(name, facts.trace.meta.size)).astype(float)
    took: np.ndarray = SHARED_MEMORY_NS + (nbytes * factors).to_numpy(dtype=float) / SHARED_MEMORY_GBPS
    return took


def _through_memory(facts: Facts) -> Change:
    """Each collective is quicker by what the quickest of its size would be; what it takes longer than that is not the wire's.

    What user code calls and waits for had better not be called (calls.py): no transport is to blame for it.
    """
    assert facts.graph is not None
    operations = facts.graph.operations
    took = operations.duration_ns.astype(float)
    sizes = pd.Series(operations.nbytes)
    quickest = pd.Series(took).groupby(sizes).transform(lambda values: values.quantile(0.1)).to_numpy(dtype=float)
    then = _through_memory_ns(facts, sizes, pd.Series(list(operations.kind), dtype=object))
    is_barrier = np.array([kind == "barrier" for kind in operations.kind], dtype=bool)
    moved = ~is_barrier & (operations.nbytes >= 0) & ~called_by_user(facts)
    less = np.where(moved, np.clip(quickest - then, 0.0, took), 0.0)
    left = np.divide(took - less, took, out=np.ones(len(took)), where=took > 0)
    # Backward gets cores back for as long as bytes no longer move.
    return Change(latency=left, transfer=left, contention=1 - float(less.sum() / max(took.sum(), 1.0)))
