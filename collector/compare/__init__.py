"""A run beside another one, beside its past, and beside limits."""
