"""How long property tests look: a little in every run, and `TLKIT_FUZZ=100 make test` for a hundred times as long."""

import os


def examples(usual: int) -> int:
    """How many examples to try, where `usual` are enough in every run."""
    return usual * int(os.environ.get("TLKIT_FUZZ", "1"))
