"""`tl-run`: starts the ranks of a job on this machine and looks after them.  Imports no torch, to be quick."""
