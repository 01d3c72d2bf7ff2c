"""Pages over an analysis."""
