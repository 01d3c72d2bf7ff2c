"""Looks at the code that runs: which lines a step is spent in, of the training thread and of data loader workers."""
