"""`import horovod` without Horovod.  `hook` is loaded at the start of every interpreter: nothing else is imported here."""
