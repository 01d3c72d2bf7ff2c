"""Ray Train, then our runtime on Ray's workers: TIMELINE of the first, TIMELINE of the second."""

import json
import os
import sys
from pathlib import Path

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from tlkit.integrations.ray import RayExecutor, record


def train(config):
    import torch
    from layers import BATCH, STEPS, Network, Points
    from ray.train.torch import prepare_data_loader, prepare_model
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    network = prepare_model(Network())
    optimizer = torch.optim.AdamW(network.parameters())
    for batch in prepare_data_loader(DataLoader(Points(config["samples"] * STEPS * BATCH), batch_size=BATCH)):
        optimizer.zero_grad()
        network(**batch)["loss"].backward()
        optimizer.step()


def train_hvd(steps):
    import time

    import torch

    import tlkit.runtime.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    network = torch.nn.Linear(64, 64)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.01))
    for _ in range(steps):
        optimizer.zero_grad()
        out = network(torch.ones(8, 64)).sum()
        if hvd.rank() == 1:
            time.sleep(0.03)  # in the loop, which is recorded as other
        out.backward()
        optimizer.step()
    return hvd.rank(), hvd.size(), hvd.local_rank()


if __name__ == "__main__":
    first, second = sys.argv[1:]
    kept = {name: os.environ[name] for name in ("FAULT", "OMP_NUM_THREADS") if name in os.environ}
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])
    ray.init(num_cpus=3, include_dashboard=False, runtime_env={"env_vars": {**kept, "PYTHONPATH": paths}})
    TorchTrainer(
        record(train, first),
        train_loop_config={"samples": 2},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(Path(first).parent / "ray")),
    ).fit()
    with RayExecutor(2, env={"HOROVOD_TIMELINE": second, "HOROVOD_CPU_OPERATIONS": "gloo"}) as executor:
        said = executor.run(train_hvd, [24])
    print("SAID " + json.dumps(said))
