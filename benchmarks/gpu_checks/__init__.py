"""What `make gpu` computes and writes down, apart from the device: comparisons of spans, and the tables of docs/gpu.md."""
