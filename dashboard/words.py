"""What the pages' words mean, said where they stand."""

from collections.abc import Iterable
from typing import Any, Final

from dash import html

EXPLAINED: Final = {
    "own work": "time of a step in which the rank itself works: the step without waits for communication",
    "waits": "time in which the training thread is blocked until a collective is through",
    "exposed": "communication for which the training waits, because nothing is left to compute",
    "hidden": "communication during computation, which costs no additional time",
    "negotiate": "from the first rank's request for a tensor until all ranks have requested it",
    "queue": "from the agreement of all ranks until the collective starts",
    "fusion": "copies of several tensors into one buffer, which then travels as one, and out of it",
    "collective": "an operation of all ranks together, such as an allreduce",
    "busbw": "bus bandwidth: algbw times the share of the data that crosses each link, 2(n-1)/n for an allreduce of n ranks; "
    "it is comparable with the nominal speed of the link",
    "algbw": "algorithm bandwidth: bytes over the time in which they move",
    "wait": "of a collective: from its start on this rank until the last rank has started it",
    "transfer": "the rest of a collective, in which bytes move",
    "process set": "the ranks that take part; 0 is all of them",
    "critical path": "the chain of work and transfers without which the step would not have ended later",
    "typical rank": "the median of the other ranks",
    "starved": "ready to run, and without a core",
    "contention": "how much longer backward takes because communication has its cores",
    "interval": "[low to high]: the gain with 95 % certainty, by resampling the steps",
    "p95": "95 % of the steps take no longer",
    "step": "one iteration of the training",
    "idle": "nothing is seen to go on",
    "gap": "from the end of an activity of the device until the next one begins",
    "allocated": "memory that torch's allocator has handed to tensors",
    "reserved": "memory that the allocator has from the driver, used or not",
    "launch": "the host launches work too slowly to keep the device busy",
}


def explain(*words: str) -> Any:
    """A list of words with their meanings, folded."""
    return html.Details(
        [
            html.Summary("Words on this page"),
            html.Dl([part for word in words for part in (html.Dt(word), html.Dd(EXPLAINED[word]))]),
        ],
        className="card words",
        **{"data-key": "words " + " ".join(words)},
    )


def headed(columns: Iterable[str]) -> list[Any]:
    """Names of columns; those that have a meaning say it under the pointer."""
    return [html.Abbr(name, title=EXPLAINED[name]) if name in EXPLAINED else name for name in columns]
