"""tl-analyze and tl-diff."""
