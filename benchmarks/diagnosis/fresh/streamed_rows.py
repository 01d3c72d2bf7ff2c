"""Samples come over a socket from a server that has little to give."""

import socket
import threading
import time
from collections.abc import Iterator

import torch
from ranks import Run, convolutions, train_step
from torch.utils.data import DataLoader, IterableDataset

NBYTES = 3 * 32 * 32


def serve(listener: socket.socket, pause_s: float) -> None:
    connection, _ = listener.accept()
    while True:
        time.sleep(pause_s)
        try:
            connection.sendall(bytes(NBYTES))
        except OSError:
            return


class Stream(IterableDataset[torch.Tensor]):
    """Samples from a server on this host."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s

    def __iter__(self) -> Iterator[torch.Tensor]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=serve, args=(listener, self.pause_s), daemon=True).start()
            with socket.create_connection(listener.getsockname()) as connection, connection.makefile("rb") as rows:
                while row := rows.read(NBYTES):
                    yield torch.frombuffer(bytearray(row), dtype=torch.uint8).view(3, 32, 32) / 255


run = Run()
model, optimizer = run.wrap(convolutions())
for batch in run.batches(DataLoader(Stream(0.003 if run.is_faulty else 0), batch_size=16, num_workers=1)):
    train_step(model, optimizer, batch)
run.close()
