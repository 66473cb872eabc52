"""Which default decides an answer: one default changed at a time over twenty scenarios, and who is then first.

Takes a shipped scenario with other links or another density as one of its own. The first place is that of a sample of
iterations, as `simnet choose` and `simnet run` have it.

    python benchmarks/defaults.py             # the table, and how often each default decides
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from simnet.scenario import Scenario, load
from simnet.studies import assumptions

LINKS = ("1 Gbit/s", "10 Gbit/s", "100 Gbit/s")
DENSITIES = ("0.1%", "1%", "10%")
SHIPPED = (
    *("flexcomm_c1", "flexcomm_c2", "fluctuating_wan", "incast", "link_faults", "moo_wan", "resnet50_100g"),
    *("quickstart", "two_level_nodes", "var_selection_non_iid", "time_to_accuracy_wan"),
)


def scenarios() -> list[tuple[str, tuple[str, ...]]]:
    """Return names of scenarios with the fields that are set: twenty of them."""
    star = [
        ("compare", (f"network.topology.star.bandwidth={rate}", f"job.density={density}"))
        for rate in LINKS
        for density in DENSITIES
    ]
    return [*((name, ()) for name in SHIPPED), *star]


def main() -> None:
    """Print the table."""
    decides: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for name, fields in scenarios():

        def again(more: Sequence[str], name: str = name, fields: tuple[str, ...] = fields) -> Scenario:
            return load(name, [*fields, *more])

        loaded = again([])
        built = loaded.build()
        told = {one["field"]: one["first"] for one in assumptions.default_effects(again, loaded, built)}
        asked.update(list(told))
        decides.update(field for field, first in told.items() if first is not None)
        words = " ".join((name, *(one.replace("network.topology.star.", "").replace("job.", "") for one in fields)))
        changed = ", ".join(f"{field}: {first}" for field, first in told.items() if first is not None)
        print(f"{words:<48} {changed or '-'}", flush=True)
    print()
    for field, count in asked.items():
        print(f"{field:<34} decides {decides[field]:>2} of {count}")


if __name__ == "__main__":
    main()
