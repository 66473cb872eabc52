#!/bin/bash
#SBATCH --job-name=calibrate
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=00:30:00
# Measure, calibrate, validate, choose, under Slurm, one rank per GPU:  sbatch slurm.sh
# What follows goes to simnet measure, as --what links,device,all_reduce; LARGEST, BUDGET, BACKEND, MODEL as below.
set -euo pipefail

OUT=${OUT:-calibrated_$SLURM_JOB_ID}
BUDGET=${BUDGET:-10 min} LARGEST=${LARGEST:-1GiB}
per_node=$((SLURM_NTASKS / SLURM_NNODES))
# torch.distributed is told where rank 0 is; ranks and their number it takes from Slurm.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER_ADDR
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
mkdir -p "$OUT"

srun --kill-on-bad-exit=1 python -m simnet.cluster.measure --backend "${BACKEND:-nccl}" \
  --budget "$BUDGET" --sizes ":$LARGEST" -o "$OUT/measured.csv" "${@:---what=links,collectives,device}"

simnet calibrate "$OUT/measured.csv" -o "$OUT/fabric.yaml"
simnet validate "$OUT/measured.csv"
if command -v all_reduce_perf > /dev/null; then
  simnet measure --launch 'srun --nodes={nodes} --ntasks={ranks} --ntasks-per-node={per_node}' --budget "$BUDGET" \
    --groups "1x$per_node,${SLURM_NNODES}x$per_node" --sizes ":$LARGEST" -o "$OUT/nccl_tests.csv"
  simnet validate "$OUT/nccl_tests.csv" --against "$OUT/fabric.yaml"
fi
simnet choose --network "$OUT/fabric.yaml" --device "$OUT/measured.yaml" --workers "$SLURM_NTASKS" --model "${MODEL:-resnet50}"
