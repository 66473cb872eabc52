"""`fsdp2` calls what PyTorch's own `fully_shard` calls, one by one, whatever its options."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simnet.cost_models.costs.models import Layer
from simnet.training.parallel.pipeline import pass_order
from simnet.training.parallel.pytorch import fsdp2
from simnet.training.parallel.units import wrap_units

pytestmark = pytest.mark.extras

NAMES = ["root", *(f"blocks.{number}" for number in range(4))]

CASES: list[tuple[int, dict[str, Any]]] = [
    (3, {}),
    (4, {}),
    (7, {}),
    (4, {"backward_prefetch": 2}),
    (4, {"backward_prefetch": 3, "forward_prefetch": 2}),
    (4, {"forward_prefetch": 1}),
    (4, {"reshard_after_forward": NAMES[1:4]}),
    (4, {"reshard_after_forward": [NAMES[1], *NAMES[3:]]}),
    (4, {"reshard_after_forward": NAMES}),
    (4, {"reshard_after_forward": ["root"]}),
    (4, {"reshard_after_forward": False, "microbatches": 2}),
    (6, {"replicas": 2, "clip": True}),
    (6, {"replicas": 6, "clip": True}),
    (6, {"replicas": 3, "microbatches": 3, "all_reduce": "last"}),
    (6, {"replicas": 3, "microbatches": 3, "gradient_sync": "last"}),
    (6, {"replicas": 3, "microbatches": 2, "gradient_sync": "last", "all_reduce": "last"}),
    (4, {"param_dtype": "bfloat16"}),
    (4, {"reduce_dtype": "bfloat16"}),
    (
        4,
        {"param_dtype": "float16", "reduce_dtype": "float32", "clip": True, "microbatches": 2, "gradient_sync": "last"},
    ),
]
# A stage of a pipeline: its order, that units stay behind backward passes, and that gradients are reduced behind them.
CASES += [
    (
        workers,
        {
            "microbatches": 3,
            "passes": pass_order(stage, 2, 3, order),
            "reshard_after_backward": False,
            "gradient_sync": "behind",
            **more,
        },
    )
    for workers, stage, order, more in (
        (4, 0, "1f1b", {}),
        (4, 1, "1f1b", {}),
        (4, 0, "gpipe", {}),
        (4, 0, "1f1b", {"reshard_after_forward": False}),
        (6, 0, "1f1b", {"replicas": 2, "reshard_after_forward": NAMES[1:3]}),
    )
]


def test_calls_are_those_of_fully_shard() -> None:
    script = Path(__file__).with_name("fully_shard_calls.py")
    ran = subprocess.run([sys.executable, str(script), json.dumps(CASES)], capture_output=True, text=True, check=True)
    for (workers, options), recorded in zip(CASES, json.loads(ran.stdout), strict=True):
        model = wrap_units([Layer(name, tuple(shape)) for name, shape in recorded["layers"]])
        calls = fsdp2(model, workers, iteration=1, **options).calls
        found = [[one.operation, one.in_elements, one.out_elements, one.dtype, one.ranks] for one in calls]
        assert found == recorded["calls"], (workers, options)
        assert found
