"""Hugging Face's Trainer, under torchrun: TIMELINE."""

import sys

import torch
from layers import BATCH, STEPS, Network, Points
from transformers import Trainer, TrainingArguments

from tlkit.integrations.transformers import TimelineCallback

torch.set_num_threads(1)
arguments = TrainingArguments(
    output_dir=sys.argv[1] + ".output",
    use_cpu=True,
    max_steps=STEPS,
    per_device_train_batch_size=BATCH,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    remove_unused_columns=False,
    label_names=["labels"],
)
Trainer(
    Network(), arguments, train_dataset=Points(2 * STEPS * BATCH), callbacks=[TimelineCallback(sys.argv[1])]
).train()
