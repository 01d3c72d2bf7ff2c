"""From files to a trace: which files belong to it, who reads them, and what is kept of it."""
