"""The collectives of sharded and replicated training steps: as recorded, and as the rules say."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from simnet.cost_models.costs.models import Layer, load_model
from simnet.training.parallel.graph import StepGraph
from simnet.training.parallel.pytorch import ddp, fsdp2
from simnet.training.parallel.units import wrap_modules, wrap_units
from simnet.training.parallel.zero import Stage3Limits, gather_sizes, zero

GOLDEN = Path(__file__).parent / "golden" / "sharded"


def rows(name: str) -> list[dict[str, str]]:
    with (GOLDEN / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


LAYERS = [Layer(row["name"], tuple(map(int, row["shape"].split("x")))) for row in rows("model_params")]
MODEL = wrap_units(LAYERS)
SIZE = sum(layer.size for layer in LAYERS)


def recorded_step(case: str, workers: int, iteration: int) -> StepGraph:
    """The step of a recorded case."""
    kind, _, variant = case.partition("_")
    if kind == "ddp":
        options = {"static": {"static_graph": True}, "accum": {"microbatches": 2}}.get(variant, {})
        return ddp(LAYERS, workers, iteration=iteration, **options)
    options = {
        "zero2": {"reshard_after_forward": False},
        "bf16": {"param_dtype": "bfloat16", "reduce_dtype": "float32"},
        "accum_plain": {"microbatches": 2},
        "accum_sync": {"microbatches": 2, "gradient_sync": "last"},
        "accum_allred": {"microbatches": 2, "all_reduce": "last"},
        "clip": {"clip": True},
    }.get(variant, {})
    return fsdp2(MODEL, workers, replicas=2 if kind == "hsdp" else 1, iteration=iteration, **options)


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*_P?.csv")))
def test_calls_are_those_recorded_one_by_one(name: str) -> None:
    case, _, workers = name.rpartition("_P")
    found = [
        [
            *(str(one) for one in (call.iteration, number)),
            "" if call.microbatch is None else str(call.microbatch),
            call.phase,
            call.operation,
            call.unit,
            *(str(one) for one in (call.in_elements, call.out_elements, call.in_bytes, call.out_bytes)),
        ]
        for iteration in range(3)
        for number, call in enumerate(recorded_step(case, int(workers), iteration).calls)
    ]
    columns = [
        "iteration",
        "seq",
        "microbatch",
        "phase",
        "op",
        "unit",
        "in_elems",
        "out_elems",
        "in_bytes",
        "out_bytes",
    ]
    assert found == [[row[column] for column in columns] for row in rows(name)]


def bytes_of(step: StepGraph, operation: str, side: str = "in") -> int:
    return sum(getattr(call, f"{side}_bytes") for call in step.calls if call.operation == operation)


def test_a_block_that_is_kept_is_not_gathered_backward_and_shifts_no_prefetch() -> None:
    freed = [block.name for block in MODEL.blocks[:-1]]
    calls = fsdp2(MODEL, 2, reshard_after_forward=freed).calls
    backward = [(call.operation, call.unit) for call in calls if call.phase == "backward"]
    assert backward[:4] == [
        ("all_gather", "blocks.2"),
        ("reduce_scatter", "blocks.3"),
        ("all_gather", "blocks.1"),
        ("reduce_scatter", "blocks.2"),
    ]


def test_a_bucket_closes_when_it_has_reached_its_cap() -> None:
    layers = [Layer(f"t{number}", (2**18,)) for number in range(6)]  # 1 MiB each
    assert [call.in_elements for call in ddp(layers, 2, iteration=5, bucket_cap_mb=2).calls] == [2**19] * 3
    assert [call.in_elements for call in ddp(layers, 2, iteration=5, bucket_cap_mb=1.5).calls] == [2**19] * 3
    assert [call.in_elements for call in ddp(layers, 2, iteration=5).calls] == [2**18, 5 * 2**18]
    halves = ddp(layers, 2, iteration=5, bucket_cap_mb=1, dtype="bfloat16")
    assert [call.in_elements for call in halves.calls] == [2**19] * 3


def test_buckets_are_filled_in_the_order_in_which_gradients_become_ready() -> None:
    layers = [Layer("a", (2**18,)), Layer("b", (2**17,)), Layer("c", (2**18,))]
    assert [call.in_elements for call in ddp(layers, 2, iteration=5, bucket_cap_mb=1).calls] == [2**18, 3 * 2**17]
    used = ddp(layers, 2, iteration=5, bucket_cap_mb=1, ready=["b", "a", "c"])
    assert [call.in_elements for call in used.calls] == [3 * 2**17, 2**18]
    with pytest.raises(ValueError, match="ready must name each tensor"):
        ddp(layers, 2, ready=["a", "b"])


def test_zero_1_and_2_all_reduce_buckets_and_gather_once() -> None:
    for stage in (1, 2):
        calls = zero(LAYERS, 4, stage=stage).calls
        assert [(call.operation, call.in_elements, call.phase) for call in calls] == [
            ("all_reduce", SIZE, "backward"),
            ("all_gather", SIZE // 4, "step"),
        ]
    accumulated = [zero(LAYERS, 4, stage=stage, microbatches=3).calls for stage in (1, 2)]
    assert [[call.microbatch for call in calls] for calls in accumulated] == [[2, None], [0, 1, 2, None]]


def test_zero_buckets_hold_at_most_their_size_but_for_a_larger_tensor() -> None:
    sizes = [call.in_elements for call in zero(LAYERS, 2, stage=2, reduce_bucket_size=10**6).calls[:-1]]
    assert sum(sizes) == SIZE
    # A tensor of 1,048,576 goes alone; beyond the limit, owners' parts go in calls that end with the part exceeding it.
    assert max(sizes) == 2**20
    assert sizes[0] == 512_000 + 1024 + 512
    in_order = [call.in_elements for call in zero(LAYERS, 2, stage=1, reduce_bucket_size=10**6).calls[:-1]]
    assert sum(in_order) == SIZE
    assert in_order[0] == 512_000 + 8192 + 1024
    beside = zero(LAYERS, 2, stage=1, reduce_bucket_size=10**6, overlap_comm=True)
    assert [call.in_elements for call in beside.calls[:-1]] == sizes


def test_zero_reduces_the_parts_of_each_owner_to_it() -> None:
    workers, partition = 4, SIZE // 4
    calls = zero(LAYERS, workers, stage=2, use_multi_rank_bucket_allreduce=False, reduce_bucket_size=4 * 10**6).calls
    reduced = [call for call in calls if call.operation == "reduce"]
    of: Counter[int] = Counter()
    for call in reduced:
        of[call.root] += call.in_elements
    assert of == dict.fromkeys(range(workers), partition)
    assert reduced[0].root == workers - 1
    assert {call.operation for call in calls} == {"reduce", "all_gather"}


def test_zero_gathers_in_as_many_calls_as_fit_the_bucket() -> None:
    assert gather_sizes(300, 4, 500) == [150, 150]
    assert gather_sizes(302, 4, 400) == [100, 100, 102]
    assert gather_sizes(10, 4, 500) == [10]
    calls = zero([Layer("a", (999,))], 4, stage=1, allgather_bucket_size=500).calls
    assert [call.in_elements for call in calls[1:]] == [124, 126]  # 999 is padded to 1000; calls begin at even elements


def test_zero_looks_for_an_overflow_by_an_all_reduce_of_a_byte() -> None:
    for stage in (1, 2, 3):
        calls = zero(LAYERS, 2, stage=stage, dtype="float16", loss_scaling=True).calls
        asked = [call for call in calls if call.dtype == "uint8"]
        assert [(call.operation, call.in_bytes) for call in asked] == [("all_reduce", 1)]
        assert calls[-1].operation == "all_gather"


def test_zero_3_gathers_module_by_module_while_it_records() -> None:
    calls = zero(LAYERS, 2, stage=3).calls
    of_modules = [one.name for one in wrap_modules(LAYERS)]
    gathers = [call for call in calls if call.operation == "all_gather" and call.phase != "step"]
    assert [call.unit for call in gathers] == [*of_modules, *reversed(of_modules)]
    assert sum(call.out_elements for call in gathers) == 2 * SIZE
    scattered = [call for call in calls if call.operation == "reduce_scatter"]
    assert [(call.in_elements, call.out_elements) for call in scattered] == [(SIZE, SIZE // 2)]


def test_zero_3_keeps_small_tensors_and_gathers_them_behind_the_step() -> None:
    small = sum(layer.size for layer in LAYERS if layer.size <= 100_000)
    assert small == SIZE - sum(layer.size for layer in LAYERS if len(layer.shape) == 2) + 8192
    for iteration in (0, 1):
        last = zero(LAYERS, 2, stage=3, iteration=iteration).calls[-1]
        assert (last.operation, last.phase, last.out_elements) == ("all_gather", "step", small)
    none = zero(LAYERS, 2, stage=3, iteration=1, limits=Stage3Limits(param_persistence_threshold=0))
    assert all(call.phase != "step" for call in none.calls)
    edge = zero(LAYERS, 2, stage=3, limits=Stage3Limits(param_persistence_threshold=8191))
    assert edge.calls[-1].out_elements == small - 8192
    on_it = zero(LAYERS, 2, stage=3, limits=Stage3Limits(param_persistence_threshold=8192))
    assert on_it.calls[-1].out_elements == small


def test_zero_3_releases_nothing_that_is_used_again_within_reach() -> None:
    kept = sum(layer.size for layer in LAYERS if layer.size <= 100_000)
    near = zero(LAYERS, 2, stage=3, iteration=1)
    assert bytes_of(near, "all_gather", "out") == 4 * SIZE  # all of it once, small tensors behind the step
    apart = zero(LAYERS, 2, stage=3, iteration=1, limits=Stage3Limits(prefetch_bucket_size=0, max_reuse_distance=0))
    assert bytes_of(apart, "all_gather", "out") == 4 * (2 * (SIZE - kept) + kept)
    # Within the reach of one block and the head, only the last modules are still there when the backward pass comes.
    some = zero(LAYERS, 2, stage=3, iteration=1, limits=Stage3Limits(prefetch_bucket_size=0, max_reuse_distance=10**6))
    assert 4 * SIZE < bytes_of(some, "all_gather", "out") < 4 * (2 * (SIZE - kept) + kept)


def test_zero_3_prefetches_in_one_call_until_so_many_are_under_way() -> None:
    limits = Stage3Limits(prefetch_bucket_size=10**6, param_persistence_threshold=0, max_reuse_distance=0)
    calls = zero(LAYERS, 2, stage=3, iteration=1, limits=limits).calls
    first, second, third = calls[:3]
    # The embedding is fetched; what follows is prefetched up to the output of the attention, which reaches a million.
    assert (first.unit, first.out_elements) == ("emb", 512_000)
    assert second.out_elements == 8192 + 1024 + 786_432 + 1536 + 262_144
    # While these are used nothing is short of them, and the next prefetch reaches a million again.
    assert third.out_elements == 512 + 1024 + 1_048_576
    off = zero(LAYERS, 2, stage=3, iteration=1, limits=Stage3Limits(prefetch_bucket_size=10**6, max_live_parameters=0))
    assert [call.unit for call in off.calls if call.phase == "forward"] == [
        one.name for one in wrap_modules(LAYERS) if any(layer.size > 100_000 for layer in one.layers)
    ]


def tens(count: int, **limits: int) -> list[int]:
    """Elements gathered by the calls of stage 3, of modules of ten elements."""
    given = Stage3Limits(**{"param_persistence_threshold": 0, "max_reuse_distance": 0, **limits})
    step = zero([Layer(f"m{number}.w", (10,)) for number in range(count)], 2, stage=3, iteration=1, limits=given)
    return [call.out_elements for call in step.calls if call.operation == "all_gather"]


def test_zero_3_prefetches_no_more_than_may_live() -> None:
    # Ten are fetched, fifteen may come, so that two modules do; when the first is released, another may.
    assert tens(6, max_live_parameters=25)[:3] == [10, 20, 10]
    assert tens(6, max_live_parameters=10)[:6] == [10] * 6
    limits = Stage3Limits(param_persistence_threshold=0, max_reuse_distance=0, max_live_parameters=25)
    layers = [Layer(f"m{number}.w", (10,)) for number in range(6)]
    kinds = [type(node.does).__name__ for node in zero(layers, 2, stage=3, iteration=1, limits=limits).nodes]
    assert kinds[:5] == ["CollectiveCall", "CollectiveCall", "ComputePart", "CollectiveCall", "ComputePart"]


def test_zero_3_keeps_what_a_prefetch_passed_over() -> None:
    # Looking ahead for a second module, the prefetch at the first passes its use backward, and it is not released.
    assert tens(2, prefetch_bucket_size=20) == [10, 10, 10]
    assert tens(2, prefetch_bucket_size=0) == [10, 10, 10, 10]


def test_zero_buckets_may_be_full() -> None:
    layers = [Layer(name, (4,)) for name in "abcd"]
    assert [call.in_elements for call in zero(layers, 2, stage=2, reduce_bucket_size=8).calls] == [8, 8, 8]
    # Of a tensor larger than the limit, a call ends with the part that exceeds it.
    large = zero([Layer("a", (16,))], 4, stage=2, reduce_bucket_size=8).calls
    assert [call.in_elements for call in large] == [12, 4, 4]


def test_units_of_the_known_models_have_all_tensors() -> None:
    known = {"gpt2": 12, "gpt2-xl": 48, "llama3-8b": 32, "bert-base": 12, "vit-l-16": 24, "resnet50": 16}
    for name, blocks in known.items():
        profile = load_model(name)
        found = wrap_units(profile.layers)
        assert len(found.blocks) == blocks
        assert found.size == profile.parameters
    assert wrap_units(LAYERS).before == 512_000 + 8192
    assert wrap_units(LAYERS, behind=["emb.weight"]).before == 8192


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: ddp(LAYERS, 0), "workers must be a whole number >= 1, got 0"),
        (lambda: ddp(LAYERS, 2, bucket_cap_mb=0), "bucket_cap_mb must be"),
        (lambda: ddp([], 2), "at least one tensor"),
        (lambda: fsdp2(MODEL, 6, replicas=4), "replicas must divide the 6 workers, got 4"),
        (lambda: fsdp2(MODEL, 2, gradient_sync="never"), "gradient_sync"),
        (lambda: fsdp2(MODEL, 2, reshard_after_forward=["blocks.9"]), "did you mean"),
        (lambda: fsdp2(MODEL, 2, param_dtype="int8"), "param_dtype"),
        (lambda: wrap_units([Layer("scale", ())]), "'scale' has no dimension"),
        (lambda: wrap_units([Layer("a", (2,)), Layer("a", (2,))]), "two tensors 'a'"),
        (lambda: wrap_units([Layer("a", (0,))]), "a length of tensor 'a' must be a whole number >= 1, got 0"),
        (lambda: wrap_units(LAYERS, behind=["emb"]), "behind"),
        (lambda: Stage3Limits(max_reuse_distance=-1), "max_reuse_distance must be a whole number >= 0, got -1"),
    ],
)
def test_what_cannot_be_is_refused_in_words(build: object, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        build()  # type: ignore[operator]
