"""Many ranks of the real control plane in one thread, on a network and a clock that a seed decides."""
