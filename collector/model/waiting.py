"""Who waits for whom: every collective is waited for until the last rank has asked for it."""

import numpy as np
import pandas as pd

from ..facts import Facts


def waits_for(facts: Facts) -> pd.DataFrame:
    """How long each rank waits for each other one.

    A rank that asks for a collective before the last one does waits for that one in between, hidden behind other work or not.

    Returns:
        `waiter`, `culprit` (ranks), `mean_ns` (of an analysed step), `ratio` (of the collectives in which the culprit was the
        last); longest wait first.  Empty where collectives of several ranks do not belong together, or their clocks do not.
    """
    table = facts.in_steps(facts.collectives)
    table = table[table["seq"] >= 0] if facts.has_one_clock else table.iloc[:0]
    asked = np.where(table["submitted_ns"] >= 0, table["submitted_ns"], table["start_ns"])
    table = table.assign(asked_ns=asked)[["process_set", "seq", "rank", "asked_ns"]]
    key = ["process_set", "seq"]
    last = table.sort_values("asked_ns", kind="stable").groupby(key, observed=True)[["rank", "asked_ns"]].last()
    joined = table.join(last.rename(columns={"rank": "culprit", "asked_ns": "last_ns"}), on=key)
    pairs = joined[joined["rank"] != joined["culprit"]].rename(columns={"rank": "waiter"})
    # Several collectives are asked for while the culprit has asked for none: no moment is waited twice.
    pairs = pairs.sort_values(["waiter", "culprit", "asked_ns"], kind="stable")
    reached = pairs.groupby(["waiter", "culprit"])["last_ns"].cummax()
    reached = reached.groupby([pairs["waiter"], pairs["culprit"]]).shift(fill_value=np.iinfo(np.int64).min)
    pairs["wait_ns"] = (pairs["last_ns"] - np.maximum(pairs["asked_ns"], reached)).clip(lower=0)
    of_waiter = joined.groupby("rank").size()
    grouped = (
        pairs.groupby(["waiter", "culprit"]).agg(mean_ns=("wait_ns", "sum"), count=("wait_ns", "size")).reset_index()
    )
    grouped["mean_ns"] = grouped["mean_ns"] / max(facts.steps.count, 1)
    grouped["ratio"] = grouped["count"] / grouped["waiter"].map(of_waiter)
    ordered = grouped.sort_values("mean_ns", ascending=False, kind="stable", ignore_index=True)
    return ordered[["waiter", "culprit", "mean_ns", "ratio"]]
