#!/bin/bash
# Measure, calibrate, validate, choose, under torchrun.
# This machine, 4 processes over gloo:      bash torchrun.sh 4
# A node of 8 GPUs:                         BACKEND=nccl bash torchrun.sh 8
# Several nodes, once on each:              BACKEND=nccl NODES=2 NODE=0 MASTER_ADDR=node0 bash torchrun.sh 8
# What follows the number goes to simnet measure, as --what links,device,all_reduce.
set -euo pipefail

RANKS_PER_NODE=${1:-4}
OUT=${OUT:-calibrated}
if [ "${NODES:-1}" = 1 ]; then
  where=(--standalone)
else
  where=(--nnodes "$NODES" --node-rank "$NODE" --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}")
fi
mkdir -p "$OUT"
what=("${@:2}")
[ ${#what[@]} -gt 0 ] || what=(--what links,collectives,device)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

torchrun "${where[@]}" --nproc-per-node "$RANKS_PER_NODE" -m simnet.cluster.measure --backend "${BACKEND:-gloo}" \
  --budget "${BUDGET:-45 s}" --sizes ":${LARGEST:-16MiB}" -o "$OUT/measured.csv" \
  "${what[@]}"
[ "${NODE:-0}" = 0 ] || exit 0

simnet calibrate "$OUT/measured.csv" -o "$OUT/fabric.yaml"
simnet validate "$OUT/measured.csv"
simnet choose --network "$OUT/fabric.yaml" --device "$OUT/measured.yaml" --workers $((${NODES:-1} * RANKS_PER_NODE)) \
  --model "${MODEL:-resnet50}"
