import contextlib
def install(): pass
def optimizer_span(o): return contextlib.nullcontext()
def step_boundary(o): pass
