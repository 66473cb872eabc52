"""What other systems, or other curves of a system, would add to predictions: bounds, from predictions that were made.

    python benchmarks/priors.py RESULTS

RESULTS is what ``benchmarks/validation.py --json`` writes.

*Congestion.* All-gathers, reduce-scatters and all-to-alls over several nodes, predicted from all-reduce, from 64 MB on:
by which power of the nodes they grow more than predicted. It is a least-squares slope of medians over numbers of nodes
for each site, and their mean over sites. A site is corrected by the mean of the others, as it is, and drawn to none as
far as these do not agree (James and Stein). Machines of one centre count as one site.

*Switch points.* A size that was left out is corrected by how far siblings are off at the same size: the same curve in
place or out of place, others of the same collective, of another collective, of another variant. No prediction knows
that much, as siblings are measured at the same sizes: it bounds what change points of siblings could tell.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from validating.page import frame
from validating.platforms import cases_of
from validating.residuals import site_of
from validating.running import load

from simnet.base.arrays import Floats
from simnet.validate.evaluation import FROM_BASE

LARGE = 64e6
CENTRES = {"polaris": "alcf", "sirius": "alcf", "sophia": "alcf"}
SIBLINGS: dict[str, tuple[list[str], str]] = {
    "in place or out of place": (["set", "variant", "setting", "size"], "system"),
    "other ranks, algorithm": (["set", "system", "collective", "size"], "setting"),
    "the same, size per rank": (["set", "system", "collective", "share"], "setting"),
    "another collective": (["set", "system", "ranks", "size"], "collective"),
    "another variant": (["set", "setting", "size"], "variant"),
}
"""What siblings have in common, and in what they differ."""


def congestion(table: pd.DataFrame) -> None:
    """Print the errors of collectives with the power of the nodes that all other sites show."""
    base = table[(table["split"] == "collectives") & (table["size"] >= LARGE) & table["collective"].isin(FROM_BASE)]
    known = base["set"].isin(table.loc[table["collective"] == "all_reduce", "set"]) & base["ours"].notna()
    own = base[known & (base["nodes"] > 1)].copy()
    own["off"], own["doublings"] = np.log(own["measured"] / own["ours"]), np.log2(own["nodes"])
    own["site"] = own["set"].map(site_of).map(lambda name: CENTRES.get(name, name))
    own["transport"] = [_transport(*one) for one in zip(own["set"], own["system"], strict=True)]
    print(f"congestion: {len(own)} predictions of {own['set'].nunique()} sets, {own['site'].nunique()} sites")
    print(f"{'':48}{_errors(own['off'])}")
    for keys in (["collective"], ["collective", "nccl"], ["collective", "nccl", "transport"]):
        plain, drawn = _corrections(own, keys)
        for how, found in (("as it is", plain), ("drawn to none", drawn)):
            print(f"{'by ' + ', '.join(keys) + ', ' + how:48}{_errors(own['off'] - found)}")
    for (name, collective), part in own.groupby(["set", "collective"]):
        print(f"    {name} {collective}: {_power(part):+.3f} a doubling")


def _corrections(own: pd.DataFrame, keys: Sequence[str]) -> tuple[Floats, Floats]:
    """Return the corrections of logarithms without the site, as the others show them and drawn to none."""
    plain, drawn = np.zeros(len(own)), np.zeros(len(own))
    for _, group in own.groupby(list(keys)):
        powers = pd.Series({site: _power(part) for site, part in group.groupby("site")})
        for site in powers.index:
            others = powers.drop(site)
            at = own.index.get_indexer(group.index[group["site"] == site])
            doublings = own["doublings"].to_numpy()[at]
            mean = float(others.mean()) if len(others) else 0.0
            noise = float(others.var(ddof=1)) / len(others) if len(others) > 1 else np.inf
            plain[at] = mean * doublings
            drawn[at] = max(0.0, 1 - noise / max(mean**2, 1e-12)) * mean * doublings
    return plain, drawn


def _power(part: pd.DataFrame) -> float:
    """Return the logarithm by which measured over predicted times grow with a doubling of the nodes."""
    cells = part.groupby(["set", "collective", "nodes"])[["off", "doublings"]].median()
    return float((cells["off"] * cells["doublings"]).sum() / (cells["doublings"] ** 2).sum())


def _transport(name: str, system: str) -> str:
    """Return what the platform of a set sends over between nodes; empty where it is not known."""
    found = [one for one in cases_of(name) if one.variant in system]
    outer = found[0].platform.outer if found else None
    return "" if outer is None else outer.transport


def switch_points(table: pd.DataFrame) -> None:
    """Print the errors of sizes left out, corrected by those of siblings at the same size."""
    for title, nccl in (("NCCL and RCCL over several nodes", True), ("MPI", False)):
        own = table[(table["split"] == "sizes") & (table["nccl"] == nccl) & (table["nodes"] != 1)]
        own = own[~own["set"].str.startswith("shaped") & own["ours"].notna()].reset_index(drop=True)
        own["off"] = np.log(own["measured"] / own["ours"])
        own["variant"] = own["system"].str.replace(r"in_place=(True|False)", "", regex=True)
        own["ranks"] = own["setting"].str.extract(r", (\d+) rank", expand=False).astype(int)
        own["share"] = own["size"] / own["ranks"]
        print(f"switch points, {title}: {len(own)} sizes left out, {_errors(own['off'])}")
        for name, (keys, other) in SIBLINGS.items():
            found = np.full(len(own), np.nan)
            for _, group in own.groupby(keys):
                off, kind = group["off"].to_numpy(), group[other].to_numpy()
                found[group.index] = [np.median(off[kind != one]) if (kind != one).any() else np.nan for one in kind]
            has, known = np.isfinite(found).mean(), np.nan_to_num(found)
            said = [f"{share:.0%} of it: {_errors(own['off'] - share * known)}" for share in (1.0, 0.5)]
            print(f"    {name:26}{has:5.0%} have one; {'; '.join(said)}")


def _errors(logs: pd.Series) -> str:
    """Return median and p90 of absolute relative errors of predictions, of logarithms of measured over predicted."""
    off = np.abs(np.exp(-logs.to_numpy(dtype=float)) - 1)
    return f"median {np.median(off):.1%}, p90 {np.quantile(off, 0.9):.1%}"


def main() -> None:
    """Read the results and print both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    table = frame(load(parser.parse_args().results))
    congestion(table)
    switch_points(table)


if __name__ == "__main__":
    main()
