"""Every rank writes its predictions into a log in each step and waits until the disk has them."""

import os
import tempfile

from ranks import Run, convolutions, images, train_step

run = Run()
model, optimizer = run.wrap(convolutions())
with tempfile.TemporaryFile(dir="/var/tmp") as log:
    for batch in run.batches(images()):
        loss = train_step(model, optimizer, batch)
        if run.is_faulty:
            for _ in range(4):
                log.write(os.urandom(500_000))
                log.flush()
                os.fsync(log.fileno())
run.close()
