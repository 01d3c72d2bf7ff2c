"""The Horovod-compatible, instrumented runtime."""
