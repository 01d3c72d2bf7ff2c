"""The control plane: which tensors are ready on which ranks, and what is executed next."""
