"""What every scheme sends, against the closed forms that it names: bytes, and times on an idle star, for any P."""

import math
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradients import gradients_of
from looping import each
from simnet.cost_models import costs
from simnet.cost_models.costs.devices import DeviceOp, DeviceProfile, KernelMethod
from simnet.network import Network
from simnet.schedule import Schedule
from simnet.sparsifier_models import SCHEMES, create
from simnet.sparsifier_models.spar_reduce_scatter import srs_rounds
from simnet.sparsifier_models.union_reduced import cut_layers
from simnet.topologies import star
from variants import CCLOCO, TEMPLAR

ALPHA, BETA = 1e-3, 8e-9
REGION = 120
# Entries other than zero that each worker has in each region of an even gradient.
FILLED = 3


class Claim(NamedTuple):
    """That messages cost what formulas add up to: each a function of `simnet.cost_models.costs`, and what was selected.

    The bytes that workers receive are those of the formula on average (``mean``), on average no more (``limit``), what
    it says of two workers from each of the others (``gather``), or no worker gets more (``most``). On an idle star the
    messages take as long as the formula says, not longer (``limit``), or nothing is claimed (``none``). With workers
    that select unlike numbers, what all would take if they selected the most is the `longest`. What the `least` adds up
    to is exceeded, by the mean of the bytes and by the time.
    """

    parts: list
    bytes: str = "mean"
    time: str = "equal"
    longest: list | None = None
    least: list | None = None
    phases: tuple = ()

    def cost(self, alpha, beta, P, parts=None):
        return sum(
            float(function(**{"alpha": alpha, "beta": beta, "N": P, **known}))
            for function, known in parts or self.parts
        )


@dataclass
class Case:
    """A scheme with options, and what is claimed of an exchange."""

    name: str
    functions: tuple
    claims: object
    options: dict
    fits: object
    even: bool
    off: tuple

    def __str__(self):
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


CASES = []


def case(name, *functions, fits=lambda P: True, even=False, off=(0.0, 0.0), **options):
    """Register a function of model and exchange that returns claims.

    Where P is no power of two, the time exceeds that of the formula by a share from one number of `off` to the other.
    """

    def register(claims):
        CASES.append(Case(name, functions, claims, options, fits, even, off))
        return claims

    return register


def is_power(P):
    return P & (P - 1) == 0


def dense_bytes(model):
    return {"M": 4 * model.parameters}


def share(model, entries):
    """Arguments M and c, such that c M / 4 are the entries."""
    return {"M": 4 * model.parameters, "c": entries / model.parameters}


# Of trees whose last level is not full messages meet, and ranks of folds are out of step. Formulas of papers have the
# real-valued log2: an all-gather takes part of a round more, a broadcast part of a latency less.
TREE, FOLD, GATHER, BROADCAST = (-0.01, 0.0), (-0.34, 0.5), (0.0, 0.3), (-0.11, 0.0)

for algorithm, function, kind in (
    ("ring", costs.ring_allreduce, "mean"),
    ("tree", costs.tree_allreduce, "most"),
    ("recursive_doubling", costs.recursive_doubling_allreduce, "most"),
    ("parameter_server", costs.parameter_server, "most"),
):

    @case("dense", function, algorithm=algorithm, off={"tree": TREE, "recursive_doubling": FOLD}.get(algorithm, (0, 0)))
    def _(model, exchange, function=function, kind=kind):
        return [Claim([(function, dense_bytes(model))], kind)]


@case("dense", costs.rabenseifner_allreduce, fits=is_power, algorithm="rabenseifner")
def _(model, exchange):
    return [Claim([(costs.rabenseifner_allreduce, dense_bytes(model))])]


@case("dense", costs.hierarchical_allreduce, algorithm="hierarchical", group_size=4, fits=lambda P: P < 4 or P % 4 == 0)
def _(model, exchange):
    # Leaders send on what they get, and their members little; who gets most is no leader where there is one group.
    known = {**dense_bytes(model), "group_size": model.options.group_size}
    return [Claim([(costs.hierarchical_allreduce, known)], "most")]


@case("fp16", costs.fp16)
def _(model, exchange):
    return [Claim([(costs.fp16, dense_bytes(model))])]


for collective, function, kind in (("ring", costs.ring_allreduce, "mean"), ("tree", costs.tree_allreduce, "most")):

    @case("randomk", function, collective=collective, off=TREE if collective == "tree" else (0, 0))
    def _(model, exchange, function=function, kind=kind):
        return [Claim([(function, {"M": 4 * model.k})], kind)]


def gathered_top_k(model, exchange):
    assert (exchange.selected == model.k).all()
    return [Claim([(model.traits.costs[-1], share(model, model.k))])]


case("randomk", costs.topk_allgather, shared=False, off=GATHER)(gathered_top_k)
case("topk", costs.topk_allgather, off=GATHER)(gathered_top_k)
case("mstopk", costs.topk_allgather, off=GATHER)(gathered_top_k)
case("lwtopk", costs.topk_allgather, layers="thirds", off=GATHER)(gathered_top_k)
case("topka", costs.topka, off=GATHER)(gathered_top_k)


@case("artopk", costs.artopk_ring, off=BROADCAST)
@case("artopk", costs.artopk_tree, collective="tree", off=(-0.17, 0.0))
@case("artopk", costs.artopk_ring, costs.var_overhead, selection="var", off=BROADCAST)
def _(model, exchange):
    function = costs.artopk_ring if model.options.collective == "ring" else costs.artopk_tree
    more = [(costs.var_overhead, {})] if model.options.selection == "var" else []
    if model.options.collective == "tree":

        def saved(alpha, beta, N):
            """Less than zero: a worker has passed the indices on when they have come to it, and reduces."""
            root, levels, message = int(exchange.stats["broadcaster"]), np.log2(N), 4 * model.k * beta
            down = [((worker - root) % N).bit_count() * alpha + levels * message for worker in range(N)]
            up = [worker.bit_count() * (alpha + message) for worker in range(N)]
            return max(np.add(down, up)) - 2 * levels * (alpha + message)

        more.append((saved, {}))
    return [Claim([(function, share(model, model.k)), *more], "most")]


@case("cltk", costs.cltk)
@case("cltk", costs.cltk, wire="released")
def _(model, exchange):
    width = {"index_bytes": model.wire.index_bytes}
    return [Claim([(costs.cltk, {**share(model, model.k), **width})], "most")]


def gathered_by_threshold(model, exchange):
    known, selected = share(model, model.k), exchange.selected
    mean, longest = (
        [(costs.threshold_allgather, {**known, "selected": entries})] for entries in (selected.mean(), selected.max())
    )
    return [Claim(mean, "gather", longest=longest)]


for name in ("sidco", "dgc", "redsync"):
    case(name, costs.threshold_allgather)(gathered_by_threshold)
case("hardthreshold", costs.threshold_allgather, form="original", allgather="recursive_doubling", off=FOLD)(
    gathered_by_threshold
)


@case("gaussiank", costs.gaussiank)
def _(model, exchange):
    known, selected = share(model, model.k), exchange.selected
    # The formula has the latency of the sizes, but not their four bytes from each worker.
    sizes = (costs.allgather, {"alpha": 0, "M": 4})
    mean, longest = (
        [(costs.gaussiank, {**known, "selected": entries}), sizes] for entries in (selected.mean(), selected.max())
    )
    return [Claim(mean, "gather", longest=longest)]


def at_union(function):
    def claims(model, exchange):
        known = {**share(model, model.k), "index_bytes": model.wire.index_bytes, "union": exchange.union}
        if function is not costs.uniontopk:
            known["longest"] = exchange.stats["k_max"]
        if function is costs.deft:
            known["layers"] = len(cut_layers([size for _, size in model.layers] or [model.parameters], model.workers))
        # The bins of DEFT are broadcast: some get no more, some less.
        received = "most" if function is costs.deft else "mean"
        return [Claim([(function, known)], received, "equal" if model.options.allgather == "ring" else "limit")]

    return claims


for name, function in (
    ("exdyna", costs.exdyna),
    ("micro", costs.exdyna),
    ("deft", costs.deft),
    ("uniontopk", costs.uniontopk),
    ("hardthreshold", costs.hardthreshold),
    ("sage", costs.hardthreshold),
):
    for options in ({}, {"wire": "released"}, {"allgather": "recursive_doubling"}):
        case(name, function, off=FOLD if "allgather" in options else (0, 0), **options)(at_union(function))
case("deft", costs.deft, layers="thirds")(at_union(costs.deft))


@case("gtopk", costs.gtopk, costs.gtopk_reduce, off=TREE)
@case("gtopk", costs.gtopk, costs.gtopk_reduce, wire="released", off=TREE)
def _(model, exchange):
    known = {**share(model, model.k), "entry_bytes": model.wire.entry_bytes}
    return [Claim([(costs.gtopk, known)], "most"), Claim([(costs.gtopk_reduce, known)], "most", phases=("tree",))]


@case("spardl", costs.spardl)
@case("spardl", costs.spardl_rsag, teams=2, sag="recursive", fits=lambda P: P % 2 == 0)
@case("spardl", costs.spardl_rsag, teams=4, sag="recursive", fits=lambda P: P % 4 == 0)
@case("spardl", costs.spardl_bsag, teams=2, fits=lambda P: P % 2 == 0)
@case("spardl", costs.spardl_bsag, teams=3, fits=lambda P: P % 3 == 0)
@case("spardl", costs.spardl_bsag, teams=4, adapt="fixed", fits=lambda P: P % 4 == 0)
def _(model, exchange):
    d, k_b, u = model.options.teams, exchange.stats["k_block"], exchange.stats["block_union"]
    known = share(model, k_b * model.workers // d)
    if d == 1:
        return [Claim([(costs.spardl, known)])]
    if model.options.sag == "recursive":
        return [Claim([(costs.spardl_rsag, {**known, "d": d})])]
    h = exchange.stats["h"]
    parts = [(costs.spardl_bsag, {**known, "d": d, "h": float(h.mean())})]
    if (u >= k_b).all() and (h == h[0]).all():
        return [Claim(parts)]
    longest = [(costs.spardl_bsag, {**known, "d": d, "h": float(h.max())})]
    return [Claim(longest, "most", "limit")]


@case("oktopk", costs.oktopk, costs.oktopk_split_and_reduce, costs.oktopk_balance_and_allgatherv, bucket=1, even=True)
@case("oktopk", costs.oktopk, costs.oktopk_split_and_reduce, costs.oktopk_balance_and_allgatherv, even=True)
def _(model, exchange):
    known, gathered = share(model, model.k), exchange.stats["gathered"]
    selected = {**known, "selected": float(exchange.selected.max())}
    # Regions are even, so that nothing is to be balanced: the other half of the words that are allowed.
    half = [(costs.oktopk_balance_and_allgatherv, {**known, "alpha": 0, "kept": gathered / 2})]
    return [
        Claim(
            [(costs.oktopk_split_and_reduce, selected)],
            time="equal" if model.options.bucket == 1 else "limit",
            phases=("split",),
        ),
        Claim(half, time="none", phases=("balance", "entries")),
        Claim(
            [(costs.oktopk_balance_and_allgatherv, {**known, "kept": gathered})],
            "most",
            "limit",
            phases=("balance", "entries"),
        ),
        Claim(
            [(costs.oktopk, {**selected, "kept": gathered})], "most", "limit", phases=("split", "balance", "entries")
        ),
    ]


@case("oktopk", costs.oktopk)
@case("oktopk", costs.oktopk, tau_prime=1)
@case("oktopk", costs.oktopk, wire="released", rules="bert")
def _(model, exchange):
    known = {"selected": float(exchange.selected.max()), "kept": exchange.stats["gathered"]}
    phases = ("split", "balance", "entries", "values", "indices")
    return [Claim([(costs.oktopk, {**share(model, model.k), **known})], "limit", "none", phases=phases)]


def between(bounds, known):
    """Claim that messages cost something between two bounds."""
    lower, upper = ((lambda end=end, **given: getattr(bounds(**given), end)) for end in ("lower", "upper"))
    return Claim([(upper, known)], "most", "limit", least=[(lower, known)])


def topkdsa_claims(model, exchange):
    assert (exchange.selected == model.k).all()
    known = share(model, model.k)
    union = float(model.parameters if exchange.stats["dense"] else exchange.stats["global_nnz"])
    exact = Claim([(costs.topkdsa, {**known, "union": union})])
    return [exact, between(costs.topkdsa_bounds, known)]


case("topkdsa", costs.topkdsa, costs.topkdsa_bounds, bucket=1, even=True, off=GATHER)(topkdsa_claims)


@case("topkdsa", costs.sparcml_bounds, algorithm="recursive_doubling", off=FOLD)
@case("topkdsa", costs.sparcml_bounds, algorithm="recursive_doubling", even=True, off=FOLD)
def _(model, exchange):
    known = share(model, model.k)
    return [between(costs.sparcml_bounds, known)]


@case("qsgd", costs.qsgd)
@case("qsgd", costs.qsgd, levels=1, bucket=64)
@case("qsgd", costs.qsgd, coding="elias")
def _(model, exchange):
    n, options = model.parameters, model.options
    known = {"M": 4 * n, "levels": options.levels, "bucket": options.bucket}
    if options.coding == "fixed":
        return [Claim([(costs.qsgd, known)], "gather")]
    norms = 32 * -(-n // options.bucket)
    bits = exchange.stats["bits_per_entry"] * n - norms
    return [Claim([(costs.qsgd, {**known, "bits": bits.max() / n})], "most", "limit")]


@case("signsgd", costs.signsgd)
@case("signsgd", costs.signsgd, scaled=False)
def _(model, exchange):
    known = {"M": 4 * model.parameters, "scale_bytes": 4 * model.options.scaled}
    return [Claim([(costs.signsgd, known)], "most")]


@case("signsgd", costs.signsgd_allgather, vote="mean")
@case("signsgd", costs.signsgd_allgather, collective="allgather")
def _(model, exchange):
    return [Claim([(costs.signsgd_allgather, {"M": 4 * model.parameters})], "gather")]


@case("powersgd", costs.powersgd)
@case("powersgd", costs.powersgd, rank=1, layers="thirds")
@case("powersgd", costs.powersgd, layers="short")
@case("powersgd", costs.powersgd, rank=3, shapes=[(20, 30), (5, 20), (20,)])
def _(model, exchange):
    left, right, vectors = model.lengths
    known = {"M": 4 * model.parameters, "left": left, "right": right, "vectors": vectors}
    return [Claim([(costs.powersgd, known)])]


def contributed(function):
    def claims(model, exchange):
        known = {"M": 4 * model.parameters, "contributed": model.contributed}
        return [Claim([(function, known)], "gather" if function is costs.chunked_allgather else "mean")]

    return claims


for name, code in (("demo", {}), ("sparseloco", {}), ("sparseloco", CCLOCO), ("sparseloco", TEMPLAR)):
    case(name, costs.chunked_allgather, layers="thirds", **code)(contributed(costs.chunked_allgather))
case("sparseloco", costs.chunked_allgather, wire="released", **TEMPLAR)(contributed(costs.chunked_allgather))
case("muloco", costs.muloco, off=GATHER)(contributed(costs.muloco))
case("muloco", costs.muloco, layers="thirds", bins=4, compressor="linear", off=GATHER)(contributed(costs.muloco))
case("muloco", costs.chunked_allgather, layers="thirds", compressor="topk")(contributed(costs.chunked_allgather))


@case("demo", costs.chunked_allgather, chunk=48, topk=7)
def _(model, exchange):
    # 720 = 15 * 48; indices of six bits.
    known = {"M": 4 * model.parameters, "size": 48, "k": 7, "bits": 6 + 32}
    return [Claim([(costs.chunked_allgather, known)], "gather")]


@case("demo", costs.chunked_allgather, layers="thirds", wire="released")
@case("sparseloco", costs.chunked_allgather, layers="thirds", wire="released", **CCLOCO | {"bins": 16})
@case("muloco", costs.chunked_allgather, layers="thirds", wire="released")
def _(model, exchange):
    # A gather of each part of each tensor.
    parts = (
        [contribution for _, sizes in model._parts() for contribution in sizes]
        if model.name != "muloco"
        else [nbytes for one in model.wholes for nbytes in model._bytes(one)]
    )
    known = {"M": 4 * model.parameters}
    return [Claim([(costs.chunked_allgather, {**known, "contributed": one}) for one in parts], "gather")]


@case("int8ring", costs.int8_ring)
def _(model, exchange):
    # Where 2 P does not divide 720, all wait for the longest chunks.
    chunk = -(-model.parameters // (2 * model.workers))
    longest = [(costs.int8_ring, {"M": 4 * 2 * model.workers * chunk})]
    return [Claim([(costs.int8_ring, dense_bytes(model))], longest=longest)]


@case("arctopk", costs.arctopk)
@case("arctopk", costs.arctopk, layers="thirds", warm_up=1, rank=3)
@case("arctopk", costs.arctopk, layers="matrix", warm_up=0)
@case("arctopk", costs.arctopk, layers="matrix", warm_up=1, feedback="ef21")
def _(model, exchange):
    if exchange.selected[0] == model.parameters:
        return [Claim([(costs.ring_allreduce, dense_bytes(model))])]
    sketch = sum(one.rows * (model.options.rank if one.columns > 1 else 1) for one in model.wholes)
    known = {"sketch": sketch, "kept": int(exchange.selected[0]), "tensors": len(model.wholes)}
    return [Claim([(costs.arctopk, {**share(model, model.k), **known})])]


@case("arctopk", costs.arctopk, layers="square", warm_up=0)
def _(model, exchange):
    # What the formula has where nothing is known of the tensors: 36 rows of 20 are about square.
    return [Claim([(costs.arctopk, {**share(model, model.k), "sketch": 4 * 36})])]


@case("ef21", costs.ef21, costs.ring_allreduce)
@case("ef21", costs.ef21, costs.ring_allreduce, variant="ef21plus")
@case("ef21", costs.ef21, costs.ring_allreduce, wire="released", start="zero")
@case("ef21", costs.ef21, costs.ring_allreduce, compressor="blocks", block=16)
def _(model, exchange):
    if exchange.selected[0] == model.parameters:
        return [Claim([(costs.ring_allreduce, dense_bytes(model))])]
    k, options = model.k, model.options
    known = {**share(model, k), "flag_bytes": float(options.variant == "ef21plus")}
    if options.wire == "released":
        known["contributed"] = 4 * k
    if options.compressor == "blocks":
        known["contributed"] = 4 * k + 4 * k / options.block
    return [Claim([(costs.ef21, known)], "gather")]


@case("onebitadam", costs.onebit_allreduce, costs.ring_allreduce)
@case("onebitadam", costs.onebit_allreduce, costs.ring_allreduce, compat="released", freeze_step=1)
@case("zerooneadam", costs.onebit_allreduce, costs.ring_allreduce, var_update_scaler=1)
@case("zerooneadam", costs.onebit_allreduce, costs.ring_allreduce, var_freeze_step=1, local_step_scaler=1)
def _(model, exchange):
    dense = (costs.ring_allreduce, dense_bytes(model))
    signs = (costs.onebit_allreduce, {"M": 0, "padded": model.server_error.size})
    phases = {one.phase for one in exchange.schedule.rounds}
    if model.workers > 1 and not phases:
        assert model.name == "zerooneadam"
        return []
    return [Claim([dense] * ("dense" in phases) + [signs] * ("signs" in phases))]


@case("omnireduce", costs.omnireduce, block=8, slots=30, fits=lambda P: 30 % P == 0)
def _(model, exchange):
    # Every aggregator has as many slots as others, and all blocks are there, or none but the first ones.
    stats = exchange.stats
    known = {"blocks": stats["blocks"][0], "union": stats["union_blocks"], "turns": stats["turns"], "block_bytes": 36}
    return [Claim([(costs.omnireduce, {**dense_bytes(model), **known, "slots": 30})])]


@case("omnireduce", costs.omnireduce, block=256, slots=1)
def _(model, exchange):
    # 720 entries are three blocks; one slot is one aggregator.
    if exchange.stats["turns"] == 1:
        return []
    return [Claim([(costs.omnireduce, {**dense_bytes(model), "slots": 1})], "most")]


@case("omnireduce", costs.omnireduce, block=8, threshold=1.5, aggregators="first")
def _(model, exchange):
    others = exchange.stats["blocks"][1:]
    known = {"blocks": others.mean() if others.size else 0.0, "union": exchange.stats["union_blocks"], "aggregators": 1}
    known |= {"turns": exchange.stats["turns"], "block_bytes": 36}
    return [Claim([(costs.omnireduce, {**dense_bytes(model), **known})], "most")]


@case("thc", costs.thc, fits=is_power)
@case("thc", costs.thc, fits=is_power, wire="released", chunk=300)
def _(model, exchange):
    # 720 entries are padded to 1024; chunks of 300, 300 and 120 to 512, 512 and 128.
    padded = 1024 if model.options.chunk > 720 else 512 + 512 + 128
    known = {"norms": len(model.chunks), **dense_bytes(model)}
    if model.wire.released:
        known |= {"up": 4 * padded, "down": 4 * padded}
    else:
        known |= {"up": padded / 2, "down": padded * math.ceil(math.log2(16 * model.workers + 1)) / 8}
    return [Claim([(costs.thc, known)], "most")]


# Groups of 36 x 20 entries: as many as rows, or fewer of which each of P partitions has some.
SQUARE = {4: 36, 6: 36, 10: 30, 12: 36}


@case("qgz", costs.two_hop_reduce, shards="none", fits=lambda P: P > 1)
@case("qgz", costs.two_hop_reduce, ranks_per_node=2, shards="none", fits=lambda P: P > 2 and P % 2 == 0)
@case("qgz", costs.two_hop_reduce, layers="square", ranks_per_node=2, allgather="ring", fits=lambda P: P in SQUARE)
@case("loco", costs.two_hop_reduce, ranks_per_node=3, allgather="ring", fits=lambda P: P > 3 and P % 3 == 0)
def _(model, exchange):
    # One tensor of 36 x 20, or a matrix of at least 27 columns, a multiple of 2 P.
    P, L = model.workers, model.options.ranks_per_node
    columns = 2 * P * math.ceil(27 / (2 * P))
    rows = math.ceil(720 / columns)
    groups = SQUARE[P] if model.layers else max(rows, columns)
    n = 720 if model.layers else rows * columns
    hops = (costs.two_hop_reduce, two_hops(L, n / 2 + 4 * groups, (n / 2 + 4 * groups) / L))
    shards = [(costs.ring_allgather, {"M": 2 * n / P})] * (model.options.shards != "none")
    return [Claim([hops, *shards])]


@case("sdp4bit", costs.two_hop_reduce, shards="none", hadamard=False, first_group=30, fits=lambda P: P > 1)
@case("sdp4bit", costs.two_hop_reduce, ranks_per_node=2, allgather="ring", fits=lambda P: P % 2 == 0)
@case("sdp4bit", costs.two_hop_reduce, ranks_per_node=4, shards="float16", allgather="ring", fits=lambda P: P % 4 == 0)
def _(model, exchange):
    P, options = model.workers, model.options
    L, multiple = options.ranks_per_node, 32 if options.hadamard else 2
    m = multiple * math.ceil(720 / P / multiple)
    first, second = P * (m + 4 * math.ceil(m / options.first_group)), P / L * (m / 2 + 4 * math.ceil(m / 128))
    nbytes = {"none": [], "float16": [2 * m], "differences": [m / 2, 4]}[options.shards]
    shards = [(costs.ring_allgather, {"M": one}) for one in nbytes]
    return [Claim([(costs.two_hop_reduce, two_hops(L, first, second)), *shards])]


def two_hops(ranks_per_node, first, second):
    return {"M": 0, "ranks_per_node": ranks_per_node, "first": first, "second": second}


def even_gradients(P, shift):
    """Gradients with as many entries in each region at every worker, each worker's `shift` further than the last's."""
    rows = np.zeros((P, P, REGION), dtype=np.float32)
    places = np.arange(FILLED) + shift * np.arange(P)[:, np.newaxis]
    for worker in range(P):
        rows[worker, :, places[worker]] = 1 + worker
    return rows.reshape(P, -1)


def made(one, P, n, density):
    options = dict(one.options)
    if "layers" in options:
        options["layers"] = {
            "thirds": (n // 3, n // 3, n - 2 * (n // 3)),
            "short": (n - 3, 2, 1),
            "matrix": (("w", (20, 30)), n - 600),
            "square": (("w", (36, 20)),),
        }[options["layers"]]
    return create(one.name, P, n, density, **options)


def exchanges_of(one, P, kinds=("normal", "heavy", "zero", "alike", "normal"), seed=0):
    """Yield a scheme and what came of an exchange, for gradients of each kind or for even ones."""
    if one.even:
        for shift in (0, 1, FILLED):
            # Strictly above the k-th magnitude, which is zero, lie all others.
            strict = one.name == "oktopk"
            if strict and shift:
                continue
            n = P * REGION
            model = made(one, P, n, (P * FILLED + strict) / n)
            yield model, model.exchange(even_gradients(P, shift))
        return
    n = 720
    model = made(one, P, n, 0.05)
    for step, kind in enumerate(kinds):
        yield model, model.exchange(gradients_of(kind, P, n, seed + step))


def part(schedule, phases):
    if not phases:
        return schedule
    return Schedule(schedule.n_ranks, [one for one in schedule.rounds if one.phase in phases])


def check_bytes(one, P, **inputs):
    for model, exchange in exchanges_of(one, P, **inputs):
        for claim in one.claims(model, exchange):
            received = part(exchange.schedule, claim.phases).bytes_received()
            if claim.bytes == "mean":
                assert received.mean() == pytest.approx(claim.cost(0, 1, P))
            elif claim.bytes == "gather":
                assert received.mean() == pytest.approx(claim.cost(0, 1, 2) * (P - 1))
            elif claim.bytes == "limit":
                assert received.mean() <= claim.cost(0, 1, P) * (1 + 1e-9)
            else:
                # Where log N is no whole number there are as many rounds as for the next power of two.
                rounds_of = P if one.name in ("spardl", "oktopk") else 1 << (P - 1).bit_length()
                assert received.max() <= claim.cost(0, 1, rounds_of) * (1 + 1e-9)
            if claim.least and is_power(P):
                assert received.mean() >= claim.cost(0, 1, P, claim.least) * (1 - 1e-9)


every = pytest.mark.parametrize("one", CASES, ids=map(str, CASES))


@every
@each("P", range(1, 18))
def test_bytes(one, P):
    if one.fits(P):
        check_bytes(one, P)


@pytest.mark.slow
@every
@given(data=st.data(), seed=st.integers(0, 2**32 - 10))
def test_bytes_whatever_the_gradients(one, data, seed):
    P = data.draw(st.sampled_from([P for P in range(1, 18) if one.fits(P)]))
    kinds = data.draw(st.lists(st.sampled_from(["normal", "heavy", "alike", "zero"]), min_size=1, max_size=3))
    check_bytes(one, P, kinds=kinds, seed=seed)


@every
@each("P", (*range(1, 11), 12, 15, 16, 17, 24, 31, 32, 33))
def test_time_on_an_idle_star(one, P):
    low, high = (0.0, 0.0) if is_power(P) else one.off
    network = Network(star(P, ALPHA, 1 / BETA))
    kinds = ("normal", "heavy", "alike") if P <= 8 else ("normal",)
    for model, exchange in exchanges_of(one, P, kinds=kinds) if one.fits(P) else ():
        for claim in one.claims(model, exchange):
            if claim.time == "none":
                continue
            took, cost = network.time(part(exchange.schedule, claim.phases)).finish, claim.cost(ALPHA, BETA, P)
            most = claim.cost(ALPHA, BETA, P, claim.longest) if claim.longest else cost
            assert took <= most * (1 + high) * (1 + 1e-9)
            if claim.time == "equal":
                assert took >= cost * (1 + low) * (1 - 1e-9)
            if claim.least:
                assert took >= claim.cost(ALPHA, BETA, P, claim.least) * (1 + low) * (1 - 1e-9)


# What workers do between their messages, by hand: what comes before the first of them, between, and after the last.
# Kernels cost far more here than messages, and each its own, so that a misplaced one shows.
SLOW = {
    **{"topk": (0.7, 17.0), "topk_layer": (0.6, 13.0), "topk_segments": (0.9, 19.0), "scan": (0.5, 11.0)},
    **{"norm": (0.3, 7.0), "gather": (0.2, 5.0), "scatter": (0.11, 3.0), "cast": (0.17, 2.0), "sum": (0.13, 9.0)},
    **{"pack": (0.07, 23.0), "count": (0.05, 29.0), "copy_in": (0.19, 31.0), "copy_out": (0.23, 37.0)},
}
METHODS = {name: KernelMethod(*terms, "made up") for name, terms in SLOW.items()}
KERNELS = DeviceProfile("slow", "none", "made up", 1e6, METHODS)


class Doing(NamedTuple):
    """Kernels as arguments of `DeviceOp` of a worker on the longest way, and seconds of messages that work may hide."""

    before: list
    between: list
    after: list
    hidden: float = 0.0


def seconds_of(kernels):
    return sum(float(KERNELS.seconds([DeviceOp(*one)], 1)[0]) for one in kernels)


def levels_of(P):
    return (P - 1).bit_length()


WORK = {}
# Their partitions, and with them their first scans, are of unlike lengths.
UNEVEN = {"exdyna", "micro"}


def by_hand(*names):
    """Register what workers do in an exchange of a scheme: a function of model and exchange."""

    def register(doing):
        WORK.update(dict.fromkeys(names, doing))
        return doing

    return register


@by_hand("topk", "topka")
def _(model, exchange):
    n, k, P = model.parameters, model.k, model.workers
    return Doing([("topk", n), ("gather", k), ("scatter", k), ("pack", k)], [], [("scatter", P * k)])


@by_hand("cltk")
def _(model, exchange):
    k = model.k
    return Doing([("topk", model.parameters)], [("gather", k)], [("scatter", k)] * 2)


@by_hand("artopk")
def _(model, exchange):
    k, var = model.k, model.options.selection == "var"
    voting = [("norm", k)] * var
    return Doing([("topk", model.parameters), *voting], [("gather", k)], [("scatter", k)] * 2)


@by_hand("gtopk")
def _(model, exchange):
    P, k = model.workers, model.k
    merges = [("scatter", k), ("topk", 2 * k)] * levels_of(P)
    # Where the tree is not full, a message for the last level may come while merges of lower ones are under way.
    hidden = 0.0 if is_power(P) else k * model.wire.entry_bytes * BETA
    return Doing([("topk", model.parameters), ("gather", k)], merges, [("scatter", k)] * 2, hidden)


@by_hand("spardl")
def _(model, exchange):
    d, k_b, u = model.options.teams, int(exchange.stats["k_block"]), int(exchange.stats["block_union"].max())
    T, h = model.workers // d, int(exchange.stats["h"].max())
    c = -(-model.parameters // T)
    bags = [m for _, m in srs_rounds(T)]
    # A bag is cut before it is sent, and added where it arrives; the own block is cut last.
    cuts = [[("topk_segments", c, 1, 0, m), *[("gather", k_b)] * m] for m in bags] + [[("topk", c), ("gather", h)]]
    before, *others = cuts
    between = [kernel for m, cut in zip(bags, others, strict=True) for kernel in [("scatter", k_b)] * m + cut]
    merges = []
    if model.options.sag == "recursive":
        merges = [("scatter", k_b), ("scatter", k_b), ("topk", 2 * k_b)]
        between += merges * (levels_of(d) - 1)
    elif d > 1:
        merges = [("scatter", h)] * d + [("topk", u)] * (u > k_b)
    last = [("scatter", exchange.union)] * 2
    # With a worker to a team, no all-gather comes after the teams have met.
    return Doing(before, between + merges, last) if T > 1 else Doing(before, between, merges + last)


@by_hand("topkdsa")
def _(model, exchange):
    P, n, k = model.workers, model.parameters, model.k
    total = n if exchange.stats["dense"] else int(exchange.stats["global_nnz"])
    if model.options.algorithm == "recursive_doubling":
        longest = [float(one.nbytes.max()) for one in exchange.schedule.rounds]
        sums = [("scatter", n if nbytes == 4 * n else nbytes / 8) for nbytes in longest]
        return Doing([("topk", n)], sums[:-1], [sums[-1], ("scatter", total)])
    taken_apart = [*[("scan", n / P)] * P, ("gather", k)]
    return Doing([("topk", n), *taken_apart], [("scatter", k / P)] * P, [("scatter", total)])


@by_hand("oktopk")
def _(model, exchange):
    P, n, k = model.workers, model.parameters, int(exchange.selected.max())
    region, gathered = int(exchange.stats["region_sizes"].max()), int(exchange.stats["gathered"])
    split, merged = [*[("scan", n / P)] * P, ("gather", k)], [("scatter", k / P)] * P
    last = [("topk", gathered), *[("scatter", exchange.union)] * 2]
    if model.wire.released:
        split, merged = [*split, ("copy_out", 2 * k)], [("copy_in", 2 * k), *merged, ("copy_out", region)]
        last = [("copy_in", 2 * (gathered or exchange.union)), *last]
    return Doing([("topk", n)], [*split, *merged, ("scan", region)], last)


@by_hand("exdyna", "micro", "uniontopk", "deft")
def _(model, exchange):
    U, n, P = exchange.union, model.parameters, model.workers
    before, hidden = {"uniontopk": [("topk", n)]}.get(model.name), 0.0
    unique = [("topk_layer", int(exchange.selected.sum()))] if model.name == "uniontopk" else []
    between = [*unique, ("gather", U)]
    if model.name == "deft":
        sizes = cut_layers([size for _, size in model.layers] or [n], model.workers)
        L = len(sizes)
        before = [("norm", n / L)] * L
        # One top-k for the first layers of all bins, one for the second, and so on.
        bins = [[sizes[layer] for layer in one] for one in model._bins]
        between += [("topk_layer", max(one)) for one in zip_longest(*bins, fillvalue=0)]
        # Who has the longest bin need not be the one to which the bins come last.
        hidden = sum(float(costs.broadcast(ALPHA, BETA, 4 * entries, P)) for entries in (P, L))
    if before is None:
        # A first exchange takes its threshold from all of so few entries.
        before = [("topk", n), ("scan", int(np.diff(model._edges).max()))]
    return Doing(before, between, [("scatter", U)] * 2, hidden)


@by_hand("fp16")
def _(model, exchange):
    return Doing([("cast", model.parameters)], [], [("cast", model.parameters)])


@by_hand("qsgd")
def _(model, exchange):
    n = model.parameters
    return Doing([("norm", n), ("cast", n)], [], [("sum", n)] * model.workers)


@by_hand("signsgd")
def _(model, exchange):
    n, served = model.parameters, model.options.vote != "mean" and model.options.collective == "auto"
    means = [("count", n)] * model.options.scaled
    return Doing([*means, ("cast", n)], [("sum", n)] * served, [("cast" if served else "sum", n)])


@by_hand("powersgd")
def _(model, exchange):
    entries = sum(one.place.stop - one.place.start for one in model._matrices)
    columns = sum(one.rank * one.rows for one in model._matrices)
    orthogonal = [("norm", columns)] * model.options.rank
    return Doing([("norm", entries)], [*orthogonal, ("norm", entries)], [("sum", entries)])


@by_hand("demo", "sparseloco")
def _(model, exchange):
    n, P, tensors, k = model.parameters, model.workers, len(model.tensors), model.k
    transform = [("cast", n / tensors)] * (2 * tensors * model.traits.transforms)
    select = [("topk_segments", one.whole.size, 1, 0, one.number) for one in model.tensors]
    of_each = [("gather", k / tensors)] * tensors
    if model.options.bins is not None:
        of_each += [("norm", k / tensors), ("cast", k / tensors)] * tensors
    kept = [
        *[("scatter", k / tensors)] * tensors,
        *transform,
        *[("sum", n / tensors)] * (tensors * model.traits.transforms),
    ]
    return Doing([*transform, *select, *of_each, *kept], [], [*[("scatter", k / tensors)] * (P * tensors), *transform])


@by_hand("muloco")
def _(model, exchange):
    n, P, tensors = model.parameters, model.workers, len(model.tensors)
    quantised = [("norm", n / tensors), ("cast", n / tensors)] * tensors
    if model.options.compressor == "topk":
        k = model.k / tensors
        select = [("topk_layer", math.prod(shape)) for _, shape in model.tensors]
        return Doing([*select, *[("gather", k), ("scatter", k)] * tensors], [], [("scatter", k)] * (P * tensors))
    before = [*quantised, *[("sum", n / tensors)] * tensors]
    if model.wire.released:
        return Doing(before, [], [*[("sum", n / tensors)] * (P * tensors), *quantised])
    return Doing(before, [*[("sum", n / P)] * P, ("norm", n / P), ("cast", n / P)], [("cast", n)])


@by_hand("int8ring")
def _(model, exchange):
    P = model.workers
    half = model.parameters / (2 * P)
    quantised = [("norm", half)] * 2 + [("cast", half)] * 2
    reduced = [*[("sum", half)] * 2, *quantised]
    # The owner quantises twice: what it keeps, and what it sends on.
    return Doing(quantised, [*reduced * (P - 1), *quantised, *[*[("cast", half)] * 2, *quantised] * (P - 2)],
                 [("cast", half)] * 2)  # fmt: skip


@by_hand("arctopk")
def _(model, exchange):
    n, k = model.parameters, model.k
    if exchange.selected[0] == n:
        return Doing([], [], [])
    difference = [("sum", n)] * model.traits.tracks
    work = [*difference]
    for one in model.wholes:
        if one.columns > 1:
            work.append(("norm", one.rows * one.columns))
        sketch = one.rows * (model.options.rank if one.columns > 1 else 1)
        work += [("norm", sketch), ("topk_layer", one.rows)]
    first = difference + [("norm", model.wholes[0].rows * model.wholes[0].columns)] * (model.wholes[0].columns > 1)
    return Doing(first, [*work[len(first) :], ("gather", k)], [("scatter", k), ("scatter", k), *difference])


@by_hand("thc")
def _(model, exchange):
    n = model.parameters
    between = [("cast", n), ("cast", n), ("sum", n), *[("sum", n)] * model.workers]
    return Doing([("norm", n), ("cast", n)], between, [("cast", n)])


@by_hand("omnireduce")
def _(model, exchange):
    return Doing([("scan", model.parameters)], [], [])


@by_hand("qgz", "loco", "sdp4bit")
def _(model, exchange):
    P, L, options = model.workers, model.options.ranks_per_node, model.options
    if model.name == "sdp4bit":
        n, transform = 720, [("cast", 720)] * options.hadamard
        turned_back = [("cast", 720 / P)] * options.hadamard
    else:
        n, transform, turned_back = model.tensors[0].entries, [], []
    quantise = ("sum", "cast", "sum", "cast") if model.name == "loco" else ("cast",)
    before = [*transform, *((one, n) for one in quantise)]
    between = [*[("sum", n / L)] * L, *((one, n / L) for one in quantise)]
    after = [*[("sum", n / P)] * (P // L), *turned_back]
    if L == 1:
        before, between = before + between, []
    if options.shards == "none":
        return Doing(before, between, after)
    if options.shards == "float16" or model.name != "sdp4bit":
        return Doing(before, between + after, [])
    return Doing(before, [*between, *after, ("sum", n / P), ("cast", n / P)], [("sum", n)])


@by_hand("onebitadam", "zerooneadam")
def _(model, exchange):
    N, P = model.parameters, model.workers
    if all(one.phase == "dense" for one in exchange.schedule.rounds):
        return Doing([], [], [])
    served = [("sum", N / P)] * P + [("norm", N / P), ("cast", N / P), ("sum", N / P)]
    compressed = [("norm", N), ("cast", N), ("sum", N)]
    if exchange.schedule.rounds[0].phase == "dense":
        return Doing([], compressed + served, [("cast", N)])
    return Doing(compressed, served, [("cast", N)])


@by_hand("ef21")
def _(model, exchange):
    n, P, k = model.parameters, model.workers, model.k
    if exchange.selected[0] == n:
        return Doing([], [], [])
    select = [("topk", n)]
    if model.options.compressor == "blocks":
        select = [("norm", n), ("topk", n / model.options.block)]
    compared = [*select, ("norm", n), ("norm", n)] * (model.options.variant == "ef21plus")
    packed = [("gather", k), ("scatter", k), *[("pack", k)] * (model.options.wire == "paper")]
    return Doing([("sum", n), *select, *compared, *packed], [], [("scatter", P * k)])


@every
@each("P", range(2, 18))
def test_time_of_messages_and_of_the_work_between_them(one, P):
    if not one.fits(P) or one.name not in WORK:
        return
    low, high = (0.0, 0.0) if is_power(P) else one.off
    network = Network(star(P, ALPHA, 1 / BETA))
    for model, exchange in exchanges_of(one, P, kinds=("normal",)):
        doing = WORK[one.name](model, exchange)
        before, between, after = map(seconds_of, doing[:3])
        first, work = KERNELS.work(exchange.kernels, P)
        schedule = exchange.schedule.with_work(work)
        timing = network.time(schedule, first, messages=True)
        assert float(timing.messages.start.min()) == pytest.approx(before if one.name not in UNEVEN else first.min())
        assert timing.finish - float(timing.messages.finish.max()) == pytest.approx(after, rel=1e-9)
        for claim in one.claims(model, exchange):
            if claim.time != "equal" or claim.phases or claim.longest:
                continue
            cost = claim.cost(ALPHA, BETA, P)
            most = before + between + after + cost * (1 + high)
            least = before + between + after + cost * (1 + low) - doing.hidden
            assert least * (1 - 1e-9) <= timing.finish <= most * (1 + 1e-9)
        if is_power(P) and one.even:
            # Where volumes follow from the gradients, workers with as many entries each stay in step all the same.
            alone = network.time(exchange.schedule).finish
            assert timing.finish == pytest.approx(alone + before + between + after, rel=1e-9)


def test_every_closed_form_of_every_scheme_is_held_against_its_messages():
    for name, scheme in SCHEMES.items():
        held = {function for one in CASES if one.name == name for function in one.functions}
        assert held == set(scheme.traits.costs), name
