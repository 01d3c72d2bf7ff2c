"""Depth of snow from pictures of stakes, Keras's `fit` on three ranks: rank 0 posts its loss to a server after each batch.

The server takes a burst and then ten posts a second only, and answers so much later, so the training is slow from about the
fortieth batch on.  Without the fault the losses of twenty batches are one post.
"""

import http.client
import json
import subprocess
import sys
from typing import Any

import frameworks_run
import horovod.keras as hvd
import keras
import numpy as np

SIDE, BATCH, EPOCH = 32, 8, 40
# Beside the training, as the real one is on another machine.
SERVER = """
import http.server, time

class Track(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    tokens, last = 25.0, time.monotonic()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        now = time.monotonic()
        Track.tokens = min(25.0, Track.tokens + 10 * (now - Track.last)) - 1
        Track.last = now
        if Track.tokens < 0:
            time.sleep(-Track.tokens / 10)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass

server = http.server.HTTPServer(("127.0.0.1", 0), Track)
print(server.server_port, flush=True)
server.serve_forever()
"""


class Tracker(keras.callbacks.Callback):
    """The losses, on a server."""

    def __init__(self, port: int, every: int) -> None:
        super().__init__()
        self.line = http.client.HTTPConnection("127.0.0.1", port)
        self.every, self.kept, self.seen = every, [], 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002  a callback's signature
        self.seen += 1
        self.kept.append({"step": self.seen, **{name: float(value) for name, value in (logs or {}).items()}})
        if len(self.kept) == self.every:
            self.line.request("POST", "/api/metrics", json.dumps(self.kept), {"Content-Type": "application/json"})
            self.line.getresponse().read()
            self.kept = []


def stakes(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """A striped stake in front of a hill, snow from below."""
    dice = np.random.default_rng(seed)
    depth = dice.uniform(0, 1, count).astype("float32")
    rows = np.arange(SIDE)
    pictures = dice.normal(0.4, 0.1, (count, SIDE, SIDE, 3))
    column = dice.integers(4, SIDE - 4, count)
    for number in range(count):
        pictures[number, :, column[number] - 1 : column[number] + 1, 0] = rows[:, None] // 4 % 2
        pictures[number, int(SIDE * (1 - depth[number])) :] += 0.5
    return pictures.astype("float32"), depth


def depth_network() -> keras.Model:
    """Separable convolutions with a way round."""
    seen = keras.Input((SIDE, SIDE, 3))
    x = keras.layers.Conv2D(24, 3, strides=2, padding="same", activation="relu")(seen)
    for width in (24, 24, 48, 48):
        y = keras.layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = keras.layers.Concatenate()([x, y]) if width != x.shape[-1] else keras.layers.Add()([x, y])
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(seen, keras.layers.Dense(1)(x))


def main() -> None:
    """The training."""
    run = frameworks_run.Run(hvd)
    keras.utils.set_random_seed(2)
    model = depth_network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3)), loss="mae")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    server = None
    if run.rank == 0:
        server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        callbacks.append(Tracker(int(server.stdout.readline()), every=1 if run.is_faulty else 20))
    try:
        model.fit(
            *stakes(run.rank, EPOCH * BATCH),
            batch_size=BATCH,
            epochs=run.steps // EPOCH,
            verbose=2 if run.rank == 0 else 0,
            callbacks=[*callbacks, run.clock()],
        )
    finally:
        if server is not None:
            server.kill()
            server.wait()
    run.close()


main()
