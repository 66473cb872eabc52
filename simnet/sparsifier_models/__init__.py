"""Sparsifiers: schemes that select, encode and exchange the entries of real gradients.

`create` makes a scheme by name. Its `Sparsifier.exchange` takes one gradient per worker and returns the mean that all
apply, the messages that carried it, and what selecting took. A scheme from elsewhere registers its class under the
entry-point group ``simnet.sparsifiers``; `names` and `create` then find it like the ones below. A class in a file needs
no package: its name is ``./my_scheme.py:Rotating``.

=================  =============================================================================================
``dense``          the whole gradient, by an all-reduce
``randomk``        k random entries, the same at every worker
``topk``           the k largest entries of each worker, over all-gather
``lwtopk``         the same layer by layer (LWTopk)
``mstopk``         the k largest, about, by a search for the threshold (MSTopk)
``artopk``         one worker's top-k indices, values by all-reduce (AR-Topk, STAR and VAR)
``exdyna``         entries above a scaled threshold in partitions that are balanced online (ExDyna)
``micro``          the same in equal partitions that stay (MiCRO)
``deft``           the k largest, about, from layers packed into one bin for each worker (DEFT)
``cltk``           the top-k indices of one worker after the other, values by all-reduce (CLT-k)
``uniontopk``      the k largest entries of each worker, values by all-reduce at their union
``hardthreshold``  all entries above a threshold that stays
``sage``           all entries above a threshold that each worker scales by a sample (SAGE)
``oktopk``         the k largest, about, of the sum of those of each worker, whose volume does not grow (Ok-Topk)
``topkdsa``        the k largest entries of each worker, over a sparse all-reduce that may turn dense (TopkDSA)
``spardl``         the k largest of the sum, about, block by block, cut down at every step of the way (SparDL)
``topka``          top-k over all-gather as the comparisons of sparse all-reduces have it (TopkA)
``gtopk``          the k largest sums of the workers' top-k, merged along a tree (gTopk)
``gaussiank``      entries above the quantile of a normal distribution, over all-gather (Gaussian-k)
``sidco``          entries above the quantile of a distribution fitted in stages, over all-gather (SIDCo)
``dgc``            entries above the threshold of a sample, over all-gather (deep gradient compression, DGC)
``redsync``        entries above a threshold found by bisection, over all-gather; trimmed top-k (RedSync)
``fp16``           the whole gradient in half precision, by an all-reduce
``qsgd``           the whole gradient, rounded at random to a few levels, over all-gather (QSGD)
``signsgd``        the signs of all entries, by majority vote or with error feedback (signSGD, EF-signSGD)
``powersgd``       layers as matrices of low rank, their factors by all-reduces (PowerSGD)
``demo``           the largest coefficients of the cosine transform of each block, over all-gather (DeMo)
``sparseloco``     the largest entries of each block, in two bits each (SparseLoCo)
``muloco``         all entries in few bits, or the largest of each tensor, with a decaying error buffer (MuLoCo)
``int8ring``       the whole gradient, quantised anew at each hop of a ring (prime, INTELLECT-1)
``arctopk``        rows that are large in the sum of all workers, by all-reduces of sketches (ARC-Top-K)
``ef21``           the largest entries of what is new, over all-gather; the update is dense (EF21, EF21+, EF21-M)
``onebitadam``     the momentum of Adam by signs, after dense steps (1-bit Adam)
``zerooneadam``    signs between ever rarer dense steps, then local steps that send nothing (0/1 Adam)
``omnireduce``     blocks that are not zero, to aggregators that ask for the next one (OmniReduce)
``thc``            codes of four bits that a server adds up as they are, transformed before (THC)
``qgz``            codes of four bits within nodes, and of their sums across, by all-to-all (qgZ of ZeRO++)
``loco``           the same with a memory of what rounding took, in eight bits (LoCo)
``sdp4bit``        codes of eight bits within nodes and four across, and weights as differences of four bits (SDP4Bit)
=================  =============================================================================================
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from simnet.base import plugins
from simnet.sparsifier_models.arctopk import ARCTopk
from simnet.sparsifier_models.artopk import ARTopk, CLTk
from simnet.sparsifier_models.base import Exchange, Sparsifier
from simnet.sparsifier_models.carried_threshold import SAGE, HardThreshold
from simnet.sparsifier_models.chunked import DeMo, SparseLoCo
from simnet.sparsifier_models.dense import FP16, Dense
from simnet.sparsifier_models.ef21 import EF21
from simnet.sparsifier_models.exdyna import ExDyna, MiCRO
from simnet.sparsifier_models.gtopk import GTopk
from simnet.sparsifier_models.int8ring import Int8Ring
from simnet.sparsifier_models.muloco import MuLoCo
from simnet.sparsifier_models.oktopk import Oktopk
from simnet.sparsifier_models.omnireduce import OmniReduce
from simnet.sparsifier_models.onebit import OneBitAdam, ZeroOneAdam
from simnet.sparsifier_models.options import FROM_JOB, Options
from simnet.sparsifier_models.powersgd import PowerSGD
from simnet.sparsifier_models.qgz import QGZ, LoCo
from simnet.sparsifier_models.qsgd import QSGD
from simnet.sparsifier_models.sdp4bit import SDP4Bit
from simnet.sparsifier_models.sidco import SIDCo
from simnet.sparsifier_models.signsgd import SignSGD
from simnet.sparsifier_models.spardl import SparDL
from simnet.sparsifier_models.thc import THC
from simnet.sparsifier_models.thresholded import DGC, GaussianK, RedSync
from simnet.sparsifier_models.topk import LayerwiseTopk, MSTopk, Randomk, Topk, TopkA
from simnet.sparsifier_models.topkdsa import TopkDSA
from simnet.sparsifier_models.two_level import PREFIX, on_two_levels
from simnet.sparsifier_models.union_reduced import DEFT, UnionTopk
from simnet.sparsifier_models.wire import Wire

if __name__ != "simnet.sparsifier_models":  # by the link at the top of a checkout
    raise ImportError("sparsifier_models has one name: import simnet.sparsifier_models")

__all__ = ["SCHEMES", "Exchange", "Options", "Sparsifier", "Wire", "create", "names", "own_options", "scheme", "usable"]

_CLASSES: tuple[type[Sparsifier], ...] = (
    *(Dense, Randomk, Topk, LayerwiseTopk, MSTopk, ARTopk),
    *(ExDyna, MiCRO, DEFT, CLTk, UnionTopk, HardThreshold, SAGE),
    *(Oktopk, TopkDSA, SparDL),
    *(TopkA, GTopk, GaussianK, SIDCo, DGC, RedSync),
    *(FP16, QSGD, SignSGD, PowerSGD),
    *(DeMo, SparseLoCo, MuLoCo, Int8Ring),
    *(ARCTopk, EF21, OneBitAdam, ZeroOneAdam, OmniReduce, THC),
    *(QGZ, LoCo, SDP4Bit),
)

SCHEMES: dict[str, type[Sparsifier]] = {one.name: one for one in _CLASSES}
"""The schemes of this package, by name."""


def names() -> list[str]:
    """Return the sorted names that `create` accepts: schemes of this package and of plug-ins.

    Examples
    --------
    >>> set(names()) >= {"artopk", "dense", "lwtopk", "mstopk", "randomk", "topk"}
    True
    """
    return sorted({*SCHEMES, *plugins.plugin_names("sparsifiers")})


def scheme(name: str) -> type[Sparsifier]:
    """Return the class of the scheme `name`; plug-ins cannot replace the schemes of this package.

    Case, hyphens, underscores and blanks do not matter for those of this package. ``two_level/NAME`` is a scheme on two
    levels, see `simnet.sparsifier_models.two_level`.

    Raises
    ------
    ValueError
        If there is no such scheme, the registered object or the class in the file is no scheme, or the scheme does not
        support two levels.
    InputError
        If a file that is named with its class, as ``./my_scheme.py:Rotating``, cannot be imported or lacks the class.

    Examples
    --------
    >>> scheme("artopk").option_type(selection="var").collective
    'ring'
    >>> scheme("AR-Topk") is scheme("artopk")
    True
    """
    if isinstance(name, str) and name.startswith(PREFIX):
        return on_two_levels(scheme(name.removeprefix(PREFIX)))
    return plugins.named_class("sparsifiers", "sparsifier", name, SCHEMES, Sparsifier)


def usable() -> dict[str, type[Sparsifier]]:
    """Return the scheme classes by name, sorted; warn about plug-in schemes that cannot be used."""
    return dict(sorted({**plugins.usable_plugins("sparsifiers", scheme), **SCHEMES}.items()))


def own_options(name: str) -> list[str]:
    """Return the names of the options of a scheme that a scenario may set; ValueError for an unknown scheme."""
    return [one.name for one in fields(scheme(name).option_type) if one.name not in FROM_JOB]


def create(name: str, workers: int, parameters: int, density: float = 1.0, **options: Any) -> Sparsifier:
    """Return a new sparsifier of the scheme `name`, for a number of workers and of parameters.

    Parameters
    ----------
    name : str
        One of `names`, or a class in a file, as ``./my_scheme.py:Rotating``.
    workers : int
        Number of workers P, >= 1.
    parameters : int
        Length n of the gradient, >= 1.
    density : float
        Fraction of the entries to keep, in (0, 1].
    **options
        Those of the scheme: the fields of its `Sparsifier.option_type`.

    Raises
    ------
    ValueError
        If there is no such scheme or option, or a value is not allowed.

    Examples
    --------
    >>> create("artopk", workers=8, parameters=1000, density=0.01, selection="var")
    ARTopk(8 workers, 1000 parameters, density 0.01)
    >>> create("artopk", workers=8, parameters=1000, selektion="var")
    Traceback (most recent call last):
    ValueError: artopk: there is no option 'selektion': did you mean 'selection'? Allowed: allgather, collective, \
compat, error_feedback, index_bytes, indices, layers, monitored, scale, seed, selection, true_shapes, value_bytes, \
values, wire
    """
    found = scheme(name)
    try:
        return found(workers, parameters, density, **options)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
