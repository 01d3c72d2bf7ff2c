"""Readers, one module a format."""
