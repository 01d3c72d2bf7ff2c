"""What moves torch's tensors between ranks: buffers, devices, transports, and what each kind of collective does with them."""
