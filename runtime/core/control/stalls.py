"""What is said, and done, when tensors wait for ranks that do not ask for them."""

import logging
from collections.abc import Sequence
from typing import Final

from ..config import Config
from .ledger import Stalled
from .watch import NO_ANSWER, Behind

#: Names of tensors that a warning lists for a rank.
_MAX_NAMED: Final = 6

_log = logging.getLogger("tlkit.runtime")


def describe_stall(stalled: Sequence[Stalled], behind: Behind | None, hosts: Sequence[str]) -> str:
    """What does not come on, in a sentence without a full stop."""
    if behind is not None:
        ranks = ", ".join(f"rank {rank} on {hosts[rank]}" for rank in behind.ranks)
        return f"{ranks} did not finish {behind.what or 'an operation'} within {behind.waiting_ns / 1e9:.1f} s"
    first = stalled[0]
    missing = ", ".join(map(str, first.missing_ranks))
    return f"rank {missing} did not submit {first.name} within {first.waiting_ns / 1e9:.1f} s"


def report_stalls(stalled: Sequence[Stalled], config: Config, *, quiet: bool = False, silent: str = "") -> str:
    """Warn of stalled tensors in Horovod's words, which log watchers match on.

    Args:
        quiet: whether it was said a moment ago; what ends the job is said all the same.
        silent: says which of the missing ranks do not answer, "" if all do.

    Returns:
        Why the job has to end, "" if it may go on waiting.
    """
    if not stalled:
        return ""
    by_rank: dict[int, list[str]] = {}
    for tensor in stalled:
        for rank in tensor.missing_ranks:
            by_rank.setdefault(rank, []).append(tensor.name)
    limit_s = config.stall_shutdown_s
    stop = 0 < limit_s <= max(tensor.waiting_ns for tensor in stalled) / 1e9
    lines = []
    for rank, names in sorted(by_rank.items()):
        more = ", ..." if len(names) > _MAX_NAMED else ""
        lines.append(f"{'!' if stop else ''}{rank}: [{', '.join(names[:_MAX_NAMED])}{more}]")
    if quiet and not stop:
        return ""
    _log.warning(
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for "
        "remainder of ranks for more than %g seconds. This may indicate that different ranks are trying to submit different "
        "tensors or that only subset of ranks is submitting tensors, which will cause deadlock.\nMissing ranks:\n%s%s",
        config.stall_warning_s,
        "\n".join(lines),
        silent and f"\n{silent}",
    )
    if not stop:
        return ""
    _log.error('One or more rank (marked by "!") is stalled for longer than %g seconds. Will shutdown.', limit_s)
    reason = f"ranks {list(stalled[0].missing_ranks)} did not submit {stalled[0].name} within {limit_s:g} s"
    return f"{reason}; {silent}" if silent else reason


def report_behind(behind: Behind, hosts: Sequence[str], config: Config, *, quiet: bool) -> str:
    """Warn of ranks that do not finish what all ranks have begun (see `report_stalls`)."""
    what = describe_stall((), behind, hosts)
    if behind.silent:
        what += f" and did not answer: {NO_ANSWER}"
    limit_s = config.stall_shutdown_s
    stop = 0 < limit_s <= behind.waiting_ns / 1e9
    if not quiet or stop:
        _log.warning("%s. The other ranks wait.", what)
    return what if stop else ""
