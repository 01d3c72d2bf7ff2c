"""What a trace is: its tables, its steps' sums, its ranks' clocks and endings, and parts of it."""
