"""A thread formats log records, in bursts, beside the training."""

import json
import threading
import time

from ranks import Run, convolutions, images, train_step


def write() -> None:
    record = {"metrics": [float(number) for number in range(2000)]}
    while True:
        end_s = time.monotonic() + 0.06
        while time.monotonic() < end_s:
            "".join(f"{key}={value}" for key, value in json.loads(json.dumps(record)).items())
        time.sleep(0.04)


run = Run()
model, optimizer = run.wrap(convolutions())
if run.is_faulty:
    threading.Thread(target=write, daemon=True).start()
for batch in run.batches(images()):
    train_step(model, optimizer, batch)
run.close()
