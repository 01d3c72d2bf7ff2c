#!/bin/bash
# DDP and FSDP scripts with tlkit.instrument(): srun starts one torchrun a node.
#   sbatch samples/cluster/slurm_torchrun.sh samples/ddp.py --steps 40
#SBATCH --job-name=torchrun
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --output=%x-%j.log
set -euo pipefail
export HOROVOD_TIMELINE="${HOROVOD_TIMELINE:-t.json}"
head="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "${RANKS_PER_NODE:-1}" \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$head:29500" "$@"
tl-analyze "$HOROVOD_TIMELINE"
