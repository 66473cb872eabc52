#!/bin/bash
# Replay under torchrun.  One node:  bash replay_torchrun.sh oktopk.csv
# Several, once on each:  NODES=2 NODE=0 MASTER_ADDR=node0 bash replay_torchrun.sh oktopk.csv
set -euo pipefail

exec torchrun \
  --nnodes "${NODES:-1}" --node-rank "${NODE:-0}" \
  --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "${MASTER_PORT:-29500}" \
  --nproc-per-node "${RANKS_PER_NODE:-4}" \
  -m simnet.validate.replay --backend "${BACKEND:-gloo}" --repetitions 20 --warmup 5 --out "${OUT:-replay.csv}" "$@"
