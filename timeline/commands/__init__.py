"""`tl-trace`, and what all commands share: arguments, tables, progress bars."""
