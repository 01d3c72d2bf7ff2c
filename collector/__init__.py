"""From a trace to a verdict."""
