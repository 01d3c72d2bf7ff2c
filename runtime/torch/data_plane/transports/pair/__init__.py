"""A connection of two ranks of their own, over which they add up what each has.

Gloo has a thread that attends to its connections, and wakes whoever waits; with two ranks the thread that reduces does better
by itself.  `native.c` moves and adds the bytes, `connection.py` says how the two come to a connection that nobody else can take.
"""

from .connection import Pair, open_pair

__all__ = ["Pair", "open_pair"]
