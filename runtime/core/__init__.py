"""The runtime without a framework: who asks for what, in which order it is executed, and what is recorded of it.

Tensors, devices and transports come in through a `Binding` (binding.py).  Nothing in here imports a framework.
"""
