"""Ok-Topk on one worker: split and reduce, global selection and all-gather.

Receivers do not know the number of entries, so sizes are sent before the split. The pieces of the all-gather are padded
to the longest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simnet.cluster.hooks import kernels
from simnet.cluster.hooks.kernels import BucketShare, Selected, pack_entries, unpack_entries
from simnet.cluster.hooks.messages import GroupMessages
from simnet.sparsifier_models.selection import Indices
from simnet.sparsifier_models.split_reduce import mean_cuts, proposed_cuts

if TYPE_CHECKING:
    from torch import Tensor


def select_entries(part: BucketShare) -> Selected:
    """Return selected indices, threshold, and flags for exact thresholds and new regions; () in the warm-up."""
    model = part.model
    if model.iteration < model.options.warm_up:
        return ()
    exact, recut = model.due()
    threshold, chosen, _ = model.find(part.given, part.rank, exact, kernels)
    return chosen, threshold, exact, recut


def exchange_entries(part: BucketShare, selected: Selected, messages: GroupMessages) -> None:
    """Exchange the selection, write the mean update, and zero the worker's own entries that were used."""
    import torch

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
    kept, sums = _all_pieces(part, mine, exact, messages)
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


def _split_and_reduce(part: BucketShare, chosen: Tensor, messages: GroupMessages) -> None:
    """Sum the selected entries of the worker's region over all workers into `part.update`."""
    import torch

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


def _all_pieces(part: BucketShare, mine: Tensor, exact: bool, messages: GroupMessages) -> tuple[Tensor, Tensor]:
    """Return ascending indices and sums of the global selection, balancing its pieces between workers if due."""
    import torch

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
