"""One worker's side of the schemes: selecting from its own gradient, and exchanging messages with other workers.

Thresholds, partitions, numbers of entries and options are those of the classes in `simnet.sparsifier_models`, of which
each bucket has an object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from simnet.base.errors import check_choice
from simnet.cluster.hooks import kernels
from simnet.cluster.hooks.kernels import BucketShare, Selected, pack_entries, unpack_entries
from simnet.cluster.hooks.messages import GroupMessages
from simnet.cluster.lazy_torch import torch
from simnet.sparsifier_models.carried_threshold import SAMPLED, sampled_places
from simnet.sparsifier_models.codes import LARGEST
from simnet.sparsifier_models.selection import Indices
from simnet.sparsifier_models.split_reduce import mean_cuts, proposed_cuts


def select_oktopk(part: BucketShare) -> Selected:
    """Return Ok-Topk's selected indices, the threshold, and two flags: threshold is exact, index ranges change."""
    model = part.model
    if model.iteration < model.options.warm_up:
        return ()
    exact, recut = model.due()
    threshold, chosen, _ = model.find(part.given, part.rank, exact, kernels)
    return chosen, threshold, exact, recut


def exchange_oktopk(part: BucketShare, selected: Selected, messages: GroupMessages) -> None:
    """Exchange the selected entries, write their mean over workers, and zero entries that this worker contributed."""
    model, given, update = part.model, part.given, part.update
    if not selected:
        messages.all_reduce(given)
        torch.div(given, messages.size, out=update)
        given.zero_()
        return
    chosen, threshold, exact, recut = selected
    if recut:
        proposed = torch.from_numpy(proposed_cuts(chosen.cpu().numpy(), messages.size, given.numel())).to(given.device)
        messages.all_reduce(proposed)
        model.cuts = mean_cuts(proposed.cpu().numpy(), given.numel())
    _split_and_reduce(part, chosen, messages)
    start, end = model.cuts[messages.rank : messages.rank + 2].tolist()
    region = update[start:end]
    mine = start + (region.nonzero().flatten() if exact else kernels.above(region, model.global_threshold))
    kept, sums = _all_gather_sums(part, mine, exact, messages)
    global_threshold = model.global_threshold
    if exact:
        # On all workers the same: of equal sums the first ones.
        largest = sums.abs().sort(descending=True, stable=True).indices[: model.k].sort().values
        kept, sums = kept[largest], sums[largest]
        global_threshold = float(sums.abs().min().item()) if len(sums) else 0.0
    own = kept[given[kept].abs() > float(np.float32(threshold))]
    given[own] = 0
    update.zero_()
    update[kept] = sums / messages.size
    local, entries = np.zeros(messages.size), np.zeros(messages.size, dtype=np.int64)
    local[messages.rank], entries[messages.rank] = threshold, len(chosen)
    model.drift(local, entries, global_threshold, len(kept), exact)


def _split_and_reduce(part: BucketShare, chosen: torch.Tensor, messages: GroupMessages) -> None:
    """Reduce-scatter: sum into `part.update` the entries that any worker selected in this worker's index range."""
    given, update, P, rank = part.given, part.update, messages.size, messages.rank
    cuts = torch.from_numpy(part.model.cuts).to(given.device)
    ends = torch.searchsorted(chosen, cuts).tolist()
    entries = np.diff(ends)
    others = [one for one in range(P) if one != rank]
    told = torch.tensor(entries, dtype=torch.int32, device=given.device)
    coming = torch.zeros_like(told)
    messages.swap({one: told[one : one + 1] for one in others}, {one: coming[one : one + 1] for one in others})
    coming_entries = coming.tolist()
    update.zero_()
    own = chosen[ends[rank] : ends[rank + 1]]
    update[own] = given[own]
    bucket = part.model.options.bucket
    for first in range(0, P, bucket):
        steps = range(max(first, 1), min(first + bucket, P))
        targets = [(rank + step) % P for step in steps]
        sends = {}
        for one in targets:
            if entries[one]:
                indices = chosen[ends[one] : ends[one + 1]]
                sends[one] = pack_entries(indices, given[indices])
        sources = [(rank - step) % P for step in steps]
        receives = {one: told.new_empty(2 * coming_entries[one]) for one in sources if coming_entries[one]}
        messages.swap(sends, receives)
        for one in receives.values():
            update.index_add_(0, *unpack_entries(one))


def _all_gather_sums(
    part: BucketShare, mine: torch.Tensor, exact: bool, messages: GroupMessages
) -> tuple[torch.Tensor, torch.Tensor]:
    rank = messages.rank
    count = torch.tensor([len(mine)], dtype=torch.int32, device=mine.device)
    pieces: Indices = torch.cat(messages.all_gather(count)).cpu().numpy().astype(np.int64)
    moved = part.model.moved(pieces, exact)
    blocks = mine.split(moved[rank].tolist())
    whole: list[Any] = [pack_entries(one, part.update[one]) for one in blocks]
    receives = {
        one: count.new_empty(2 * entries)
        for one, entries in enumerate(moved[:, rank].tolist())
        if entries and one != rank
    }
    messages.swap({one: sent for one, sent in enumerate(whole) if one != rank and len(sent)}, receives)
    parts = [unpack_entries(receives[one] if one in receives else whole[rank]) for one in sorted({*receives, rank})]
    sizes = moved.sum(axis=0).tolist()
    padded = count.new_zeros(2, max(sizes))
    padded[0, : sizes[rank]] = torch.cat([indices for indices, _ in parts])
    padded[1, : sizes[rank]] = torch.cat([values for _, values in parts]).view(torch.int32)
    gathered = [unpack_entries(one) for one in messages.all_gather(padded.flatten())]
    indices = torch.cat([one[:size] for (one, _), size in zip(gathered, sizes, strict=True)])
    return indices.long(), torch.cat([one[:size] for (_, one), size in zip(gathered, sizes, strict=True)])


class WorkerScheme(NamedTuple):
    """One worker's side of a scheme: functions to select and to exchange, and the supported values of options."""

    # What it does before its first message; returns the tensors that the rest needs.
    select: Callable[[BucketShare], Selected]
    # The rest; writes the update, the same on all workers.
    exchange: Callable[[BucketShare, Selected, GroupMessages], None]
    follows: Mapping[str, tuple[object, ...]] = MappingProxyType({})


def _do_nothing(_: BucketShare) -> Selected:
    return ()


def _reduce_dense(part: BucketShare, _: Selected, messages: GroupMessages) -> None:
    messages.all_reduce(part.given)
    part.update.div_(messages.size)


def _cast_half(part: BucketShare) -> Selected:
    form = part.model.options.format
    share = part.given.clamp(-LARGEST[form], LARGEST[form]).div_(part.model.workers)
    share = share.to(torch.float16 if form == "fp16" else torch.bfloat16)
    if part.given is not part.update:
        part.given.sub_(share.float(), alpha=part.model.workers)
    return (share,)


def _reduce_half(part: BucketShare, selected: Selected, messages: GroupMessages) -> None:
    (share,) = selected
    messages.all_reduce(share)
    part.update.copy_(share)


def _take_entries(given: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor at `indices`, and set them to zero in the tensor."""
    values = given[indices]
    given[indices] = 0
    return values


def _pack_selection(part: BucketShare) -> Selected:
    """Select the k largest entries, set them to zero in the gradient, and return them as one message."""
    indices = kernels.top_k(part.given, part.model.k)
    return (pack_entries(indices, _take_entries(part.given, indices)),)


def _gather_packed(part: BucketShare, selected: Selected, messages: GroupMessages) -> None:
    gathered = messages.all_gather(selected[0])
    part.update.zero_()
    for one in gathered:
        part.update.index_add_(0, *unpack_entries(one))
    part.update.div_(messages.size)


def _select_artopk(part: BucketShare) -> Selected:
    """Return AR-Topk's selection: indices of the k largest magnitudes, and for variant "var" their squared norm."""
    model = part.model
    if model.options.selection == "star":
        if part.rank != model.turn and model.options.compat == "released":
            return (part.given.new_empty(model.k).int(),)
        return (kernels.top_k(part.given, model.k).int(),)
    indices = kernels.top_k(part.given, model.k)
    return indices.int(), kernels.squared_norm(part.given[indices])


def _reduce_common(part: BucketShare, selected: Selected, messages: GroupMessages) -> None:
    indices, root = selected[0], part.model.turn
    if part.model.options.selection == "var":
        norms = torch.cat(messages.all_gather(selected[1])).cpu().numpy()
        root = int(norms.argmax())
    messages.broadcast(indices, root)
    _reduce_at(part, indices.long(), messages)


def _reduce_at(part: BucketShare, indices: torch.Tensor, messages: GroupMessages) -> None:
    """Average the entries at `indices` over all workers into the update, and set them to zero in the gradient."""
    values = _take_entries(part.given, indices)
    messages.all_reduce(values)
    part.update.zero_()
    part.update[indices] = values.div_(messages.size)


def _search_partition(part: BucketShare) -> Selected:
    """Return the indices of entries above the threshold in the worker's part of the gradient, and their number."""
    model, given = part.model, part.given
    model.advance(lambda: np.full(model.workers, _estimated_threshold(part)))
    start, end, threshold = model.searched(part.rank)
    found = kernels.above(given[start:end], threshold, strict=False)
    if not found.numel() and start < end:
        found = found.new_full((1,), model.iteration % (end - start))
    return (found + start).int(), torch.tensor([found.numel()], dtype=torch.int32, device=given.device)


def _estimated_threshold(part: BucketShare) -> float:
    """Return the k-th largest magnitude of the gradient, exact or estimated from a sample."""
    model, given = part.model, part.given
    places = None
    if model.options.start != "exact":
        places = sampled_places(given.numel(), model.density, model.options.seed, model.iteration, part.rank)
    if places is None:
        return kernels.kth_magnitude(given, model.k)
    return kernels.kth_magnitude(given[torch.from_numpy(places).to(given.device)], SAMPLED)


def _reduce_union(part: BucketShare, selected: Selected, messages: GroupMessages) -> None:
    """Gather the indices of all workers, padded to the longest list, and average the values at their union."""
    own, count = selected
    counts = torch.cat(messages.all_gather(count)).tolist()
    padded = own.new_zeros(max(counts))
    padded[: own.numel()] = own
    gathered = messages.all_gather(padded)
    union = torch.cat([one[:entries] for one, entries in zip(gathered, counts, strict=True)])
    _reduce_at(part, union.long(), messages)
    part.model.record(np.array(counts))


# Options that change messages, with their values that hooks follow.
_MESSAGES: Mapping[str, tuple[object, ...]] = {
    **{"wire": ("paper",), "scale": (1,), "indices": (None,), "values": (None,)},
    **{"value_bytes": (None, 4), "index_bytes": (None, 4)},
}

SCHEMES: Mapping[str, WorkerScheme] = {
    "dense": WorkerScheme(_do_nothing, _reduce_dense),
    "fp16": WorkerScheme(
        _cast_half, _reduce_half, {"accumulation": ("half",), "value_bytes": (None,), "index_bytes": (None,)}
    ),
    "topk": WorkerScheme(_pack_selection, _gather_packed),
    "artopk": WorkerScheme(_select_artopk, _reduce_common, {"monitored": (False,)}),
    "exdyna": WorkerScheme(_search_partition, _reduce_union),
    "oktopk": WorkerScheme(select_oktopk, exchange_oktopk, {"compat": ("paper",)}),
}
"""The schemes that hooks support, by their names in `simnet.sparsifier_models`."""


def unfollowed_option(model: Any) -> str:
    """Return the first option of a scheme that hooks do not support, with its value; "" if they support all options."""
    follows = SCHEMES[model.name].follows
    if model.name == "artopk" and model.options.selection == "var":
        follows = {"compat": ("paper",), **follows}
    for name, values in ({**follows, **_MESSAGES, **follows}).items():
        value = getattr(model.options, name)
        if value not in values:
            return f"{name}: {f'{value:g}' if isinstance(value, float) else str(value).lower()}"
    return ""


def worker_scheme(name: str) -> WorkerScheme:
    """Return one worker's side of the scheme `name`; InputError if hooks do not support the scheme."""
    check_choice(name, "exchange of hooks", SCHEMES, file="simnet.cluster.hooks")
    return SCHEMES[name]
