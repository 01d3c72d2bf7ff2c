"""tlkit: where the step time of distributed training goes, why, and what change gains how much.

The four parts live in folders of their own at the root of the repository and install below this name: `tlkit.timeline`
(the format and the tables), `tlkit.runtime` (the Horovod-compatible runtime that records), `tlkit.collector` (diagnosis)
and `tlkit.dashboard`.
"""

__version__ = "0.1.0"
