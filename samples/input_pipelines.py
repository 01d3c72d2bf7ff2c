"""Three ways to feed a training from TFRecord files, and what each costs.

    python samples/input_pipelines.py images --write 4
    HOROVOD_TIMELINE=t.json tl-run -np 2 python samples/input_pipelines.py images --pipeline serial
    tl-analyze t.json

`serial` reads, decodes and augments in the training process, so that every step waits for its batch.  `workers` does the same in
two worker processes, ahead of the training.  `cached` does it once, at the start, and keeps the result in memory.
Needs `pip install tfrecord`.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from cnn import Images, Network
from tfrecord.reader import tfrecord_loader
from tfrecord.writer import TFRecordWriter
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

RECORDS_A_FILE = 320

Example = tuple[torch.Tensor, int]


def write(folder: Path, files: int) -> None:
    """Made-up images as TFRecord files."""
    folder.mkdir(parents=True, exist_ok=True)
    images = Images(files * RECORDS_A_FILE)
    for number in range(files):
        writer = TFRecordWriter(str(folder / f"part{number:03d}.tfrecord"))
        for row in range(number * RECORDS_A_FILE, (number + 1) * RECORDS_A_FILE):
            image, label = images[row]
            writer.write({"image": (image.numpy().tobytes(), "byte"), "label": (label, "int")})
        writer.close()


def augment(image: torch.Tensor) -> torch.Tensor:
    """Turned by a little."""
    cos, sin = torch.cos(angle := 0.2 * torch.rand(())), torch.sin(angle)
    turn = torch.stack([cos, -sin, torch.zeros(()), sin, cos, torch.zeros(())]).reshape(1, 2, 3)
    grid = functional.affine_grid(turn, [1, *image.shape], align_corners=False)
    return functional.grid_sample(image[None], grid, align_corners=False)[0]


class Records(IterableDataset[Example]):
    """Files one after the other, divided over the ranks, and over the workers of a rank."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[Example]:
        worker = get_worker_info()
        mine = self.files if worker is None else self.files[worker.id :: worker.num_workers]
        for path in mine:
            for record in tfrecord_loader(str(path), None, {"image": "byte", "label": "int"}):
                pixels = np.frombuffer(record["image"], np.float32).reshape(3, 32, 32).copy()
                yield augment(torch.from_numpy(pixels)), int(record["label"][0])


class Cached(Dataset[Example]):
    """Every record, read and decoded at the start."""

    def __init__(self, records: Records) -> None:
        self.examples = list(records)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]


def loader_of(pipeline: str, records: Records, batch_size: int) -> DataLoader[Any]:
    """The loader of a pipeline."""
    if pipeline == "cached":
        return DataLoader(Cached(records), batch_size=batch_size, shuffle=True)
    return DataLoader(records, batch_size=batch_size, num_workers=2 if pipeline == "workers" else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=int, metavar="FILES", help="make so many files and end")
    parser.add_argument("--pipeline", choices=["serial", "workers", "cached"], default="serial")
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    if args.write:
        write(args.folder, args.write)
        return

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(42)
    files = sorted(args.folder.glob("*.tfrecord"))[hvd.rank() :: hvd.size()]
    loader = loader_of(args.pipeline, Records(files), args.batch_size)
    model = Network(channels=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    steps, loss = 0, torch.zeros(())
    for images, labels in loader:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        steps += 1
    mean = hvd.allreduce(loss.detach(), name="loss")
    if hvd.rank() == 0:
        print(f"{args.pipeline}: {steps} steps on {hvd.size()} ranks, last loss {mean.item():.4f}")


if __name__ == "__main__":
    main()
