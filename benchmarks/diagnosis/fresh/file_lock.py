"""All ranks append to one log on a slow shared disk, and a lock on the file lets one of them in at a time."""

import fcntl
import os
import tempfile
import time
from pathlib import Path

from ranks import Run, convolutions, images, train_step

run = Run()
model, optimizer = run.wrap(convolutions())
log = Path(tempfile.gettempdir()) / f"training-{os.environ.get('MASTER_PORT', os.getppid())}.log"
for batch in run.batches(images()):
    loss = train_step(model, optimizer, batch)
    if run.is_faulty:
        with log.open("a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(f"{run.rank} {run.step} {loss.item():.6f}\n")
            time.sleep(0.008)
run.close()
log.unlink(missing_ok=True)
