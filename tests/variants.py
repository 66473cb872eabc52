"""Every scheme in every way it can send, for the tests of all of them and of one family: name and options."""

from simnet.sparsifier_models import SCHEMES, create
from simnet.sparsifier_models.thresholded import DGC_VARIANTS, RULES

CCLOCO = {"code": "ccloco", "decay": 0.999, "topk": 32, "bins": None}
TEMPLAR = {"code": "templar", "topk": 64}
"""The scheme sparseloco as the codes of CCLoco and Templar have it."""

# Options that take a scheme another way; each scheme is also tried as it is. All have three layers unless they say (),
# and `teams` are a share of the workers.
OPTIONS = {
    "dense": [{"algorithm": "tree"}, {"algorithm": "parameter_server"}],
    "randomk": [{"shared": False, "allgather": "bruck"}],
    "topk": [{"allgather": "ring", "wire": "released", "compat": "released"}],
    "lwtopk": [{"fused": False, "compat": "released"}],
    "mstopk": [{"compat": "released"}],
    "artopk": [
        {"compat": "released", "wire": "released", "collective": "tree"},
        {"selection": "var", "monitored": True},
        {"selection": "var", "compat": "released"},
    ],
    "topka": [{"wire": "released", "allgather": "ring"}],
    "gtopk": [{"conserving": False}, {"compat": "released", "wire": "released"}],
    "gaussiank": [*({"rules": one} for one in RULES), {"wire": "released", "allgather": "bruck"}],
    "sidco": [
        {"stages": 1, "distribution": "gammapareto"},
        {"stages": 3, "distribution": "pareto", "wire": "released"},
        {"stages": 0, "groups": "layers"},
    ],
    "dgc": [
        *({"variant": one} for one in DGC_VARIANTS),
        {"wire": "released", "warm_up": (0.5, 0.25)},
        {"momentum": 0.9},
    ],
    "redsync": [{"trimmed": True, "wire": "released"}],
    "exdyna": [{"blocks": 8, "wire": "released", "start": "published", "allgather": "ring", "allreduce": "tree"}],
    "micro": [{"start": "exact", "allgather": "bruck", "allreduce": "rabenseifner"}],
    "deft": [{"layers": (), "wire": "released"}],
    "cltk": [{"wire": "released", "allreduce": "recursive_doubling"}],
    "uniontopk": [{"allreduce": "parameter_server"}],
    "hardthreshold": [
        {"form": "original"},
        {"form": "original", "layers": (), "wire": "released", "start": "published"},
    ],
    "spardl": [
        {"residual": "local", "exchanges": "sequential", "wire": "released"},
        {"teams": "half", "sag": "auto"},
        {"teams": "half", "adapt": "fixed"},
        {"teams": "all", "sag": "recursive"},
        {"teams": "all"},
    ],
    "fp16": [
        {"format": "bf16", "algorithm": "tree"},
        {"accumulation": "half"},
        {"accumulation": "half", "format": "bf16"},
    ],
    "qsgd": [{"bucket": 7, "levels": 20, "norm": "max", "coding": "elias", "allgather": "ring"}],
    "signsgd": [
        {"scaled": False, "collective": "allgather"},
        {"vote": "mean"},
        {"vote": "mean", "collective": "parameter_server"},
    ],
    "powersgd": [
        {"rank": 3, "compat": "released", "algorithm": "recursive_doubling"},
        {"rank": 1, "warm_start": False},
    ],
    "demo": [{"chunk": 16, "topk": 4, "gain": 1e-3, "wire": "released"}, {"topk": None}],
    "sparseloco": [
        {"bins": None, "mean_over": "workers", "decay": 0.5},
        {"chunk": 7, "topk": 20, "wire": "released"},
        CCLOCO | {"compat": "released", "bins": 256, "wire": "released", "allgather": "ring"},
        CCLOCO | {"dct": True, "bins": 4, "decay": 1.0},
        CCLOCO | {"topk": None, "mean_over": "workers"},
        TEMPLAR | {"bins": None, "chunk": 16},
        TEMPLAR | {"wire": "released"},
    ],
    "muloco": [
        {"compressor": "row_wise_statistical", "bins": 4, "wire": "released", "gain": 0.5},
        {"compressor": "linear", "bins": 5, "requantised": False},
        {"compressor": "row_wise_linear", "bins": 16, "compat": "released"},
        {"compressor": "topk"},
        {"compressor": "topk", "wire": "released"},
    ],
    "arctopk": [
        {"warm_up": 0, "rank": 2, "collective": "tree"},
        {"warm_up": 1, "feedback": "ef21", "rounding": "ceil"},
        {"warm_up": 0, "feedback": "ef21", "momentum": "double", "start": "zero"},
    ],
    "ef21": [
        {"variant": "ef21plus", "allgather": "ring"},
        {"wire": "released", "momentum": "published", "eta": 0.3},
        {"compressor": "blocks", "momentum": "heavy_ball", "start": "zero"},
        {"compressor": "blocks", "variant": "ef21plus", "momentum": "double"},
    ],
    "omnireduce": [
        {"block": 60, "slots": 50, "threshold": 2.5, "aggregators": "first"},
        {"block": 7, "slots": 900, "threshold": 1.0, "compat": "released"},
    ],
    "thc": [{"chunk": 100, "servers": "all", "allgather": "ring"}, {"wire": "released"}],
    "qgz": [
        {"wire": "released", "compat": "released", "ranks_per_node": "half", "allgather": "ring"},
        {"layers": (), "ranks_per_node": "half", "shards": "none"},
    ],
    "loco": [
        {"wire": "released", "compat": "released", "ranks_per_node": "half", "reset_T": 2},
        {"layers": (), "reset_T": 2, "err_beta": 0.5},
    ],
    "sdp4bit": [
        {"ranks_per_node": "half", "first_group": 128},
        {"hadamard": False, "shards": "float16", "second_group": 30},
    ],
    "onebitadam": [
        {"freeze_step": 1, "allgather": "ring", "collective": "tree"},
        {"compat": "released", "masked": False},
    ],
    "zerooneadam": [
        {"var_freeze_step": 1, "var_update_scaler": 1, "local_step_scaler": 1, "local_step_clipper": 2},
        {"compat": "released", "var_freeze_step": 3, "local_step_scaler": 1, "local_step_clipper": 4, "masked": False},
    ],
    "oktopk": [
        {"rules": "lstm", "wire": "released"},
        {"rules": "bert", "wire": "released"},
        {"rules": "bert", "wire": "released", "compat": "released"},
        {"rules": "lstm", "compat": "released", "balance": "trigger", "trigger": 1.0},
        {"warm_up": 2, "allgather": "ring", "balance": "never"},
        {"tau_prime": 3, "tau": 2, "bucket": 1, "allgather": "bruck"},
    ],
    "topkdsa": [
        {"algorithm": "recursive_doubling"},
        {"algorithm": "split_allgather"},
        {"algorithm": "dense_allgather"},
        *(
            {"algorithm": one, "wire": "released", "compat": "released", "rules": "bert"}
            for one in ("split", "recursive_doubling", "split_allgather", "dense_allgather")
        ),
        {"allgather": "ring", "bucket": 1, "wire": "released"},
    ],
}

MATRICES = ("demo", "sparseloco", "muloco")
"""Schemes that work on the rows and columns of layers."""

TWO_HOPS = ("qgz", "loco", "sdp4bit")
"""Schemes that quantise for two hops: what rounding takes is lost."""

ADAMS = ("onebitadam", "zerooneadam")
"""Schemes that hold the state of an optimiser, whose update does not grow with the gradients."""


def kept_beside(variant):
    """Return how many arrays of the size of the gradients a variant makes beside the residual, vectors included."""
    name, options = variant
    momentum = options.get("momentum", "none")
    if name == "dgc":
        return int("momentum" in options)
    if name == "ef21" or options.get("feedback") == "ef21":
        return 1.2 * {"none": 1, "double": 3}.get(momentum, 2)
    if name == "thc":
        # A gradient just above a power of two has as much padding.
        return 1.2
    if name in TWO_HOPS:
        # Vectors of one worker, on the way to codes; LoCo has two memories of a byte, before and after.
        return 0.8 if name == "loco" else 0.4
    if name in ADAMS:
        # Memories; in local steps moments and what is yet to be said, too.
        return 1.7 if "var_freeze_step" not in options else 4
    return 0


def variants_of(*names):
    """Return the variants of some schemes."""
    return [(name, options) for name in names for options in ({}, *OPTIONS.get(name, ()))]


EVERY = variants_of(*SCHEMES)


def label(variant):
    name, options = variant
    return " ".join([name, *map(str, options.values())])


def made(variant, workers, parameters, density=0.01, **more):
    """Return the scheme of a variant."""
    name, options = variant
    options = {**options, **more}
    match options.get("teams"):
        case "half":
            # The largest power of two that divides P, or as it is for odd P.
            options["teams"] = workers & -workers
        case "all":
            options["teams"] = workers if options.get("sag") != "recursive" or workers & (workers - 1) == 0 else 1
    cut = parameters // 3
    if options.get("ranks_per_node") == "half":
        options["ranks_per_node"] = max(one for one in range(1, workers // 2 + 2) if workers % one == 0)
    layers = (cut, cut, parameters - 2 * cut) if cut else (parameters,)
    if cut and name in (*MATRICES, "arctopk", "qgz", "loco"):
        # The first layer is a matrix, of as many columns as divide it.
        columns = next(one for one in (24, 10, 9, 7, 1) if cut % one == 0)
        layers = (("w", (cut // columns, columns)), ("b", cut), ("c", parameters - 2 * cut))
    return create(name, workers, parameters, density, **{"layers": layers, **options})
