"""Follows jobs while they train: keeps what their ranks record, and diagnoses it again and again."""
