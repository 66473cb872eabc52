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
  mkdir -p "$OUT/nccl_tests"
  srun --kill-on-bad-exit=1 all_reduce_perf -b 1K -e 1G -f 2 -g 1 > "$OUT/nccl_tests/all_reduce.log"
  simnet validate "$OUT/nccl_tests" --against "$OUT/fabric.yaml"
fi
simnet choose --network "$OUT/fabric.yaml" --device "$OUT/measured.yaml" --workers "$SLURM_NTASKS" --model "${MODEL:-resnet50}"
