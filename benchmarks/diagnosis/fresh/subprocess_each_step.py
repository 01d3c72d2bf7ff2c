"""The loop asks another program for the state of the machine in each step."""

import subprocess
import sys

from ranks import Run, convolutions, images, train_step

run = Run()
model, optimizer = run.wrap(convolutions())
for batch in run.batches(images()):
    train_step(model, optimizer, batch)
    if run.is_faulty:
        code = "print(open('/proc/meminfo').read())"
        subprocess.run([sys.executable, "-S", "-c", code], check=True, stdout=subprocess.DEVNULL)
run.close()
