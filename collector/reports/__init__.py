"""One analysis, written for people and for programs."""
