"""``simnet calibrate``: cost models fitted to measured times or a specification, and workers' compute times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simnet.base.errors import InputError, check_choice
from simnet.report.summary import Summary, percent, table_columns
from simnet.verbs.request import Words, refuse_given, verb, word_list

if TYPE_CHECKING:
    from simnet.cost_models.calibration.summary import Calibration


@verb
def calibrate(
    *logs: str,
    where: Sequence[str] = (),
    fact: Sequence[str] = (),
    coverage: float = 0.9,
    network: str | None = None,
    stack: str | None = None,
    density: Words = (),
    seed: int | None = None,
) -> Summary:
    """Fit a model to measured collectives, to a platform's specification, to workers' logs, or to a gradient trace.

    The content of the input decides what is fitted. Times of collectives, or a platform, give the cost model of a
    cluster. A folder with the ``rank_0.csv`` of `simnet.cluster.hooks` gives ``job.compute`` of a scenario. A gradient
    trace gives parameters of synthetic gradients. ``--out FILE.yaml`` writes the result (of a trace ``FILE.json``).

    Parameters
    ----------
    logs
        Logs, folders, a platform, or a gradient trace.

        Names of `simnet list measured` are read as well.
    where
        Use only these rows, such as variant=efa or place=in.

        For a trace, scale=100 uses a hundredth of the entries.
    fact
        Facts missing in the logs: ranks=16, '*_n{ranks}.log'.
    coverage
        Probability of intervals, 0.5 to 0.99.

    Raises
    ------
    SimnetError
        If something is wrong with the logs or with what is given.
    """
    from simnet.cost_models.calibration.platform import is_platform, platform_names
    from simnet.studies import options
    from simnet.studies.trace_files import is_trace

    if not 0.5 <= coverage <= 0.99:
        raise InputError(f"must be from 0.5 to 0.99, got {coverage:g}", file="--coverage")
    names = [*logs] or ([network] if network is not None else [])
    if not names:
        raise InputError("needs logs of benchmarks, or a platform", file="simnet calibrate")
    if len(names) == 1:
        (name,) = names
        given = {"--where": where, "--fact": fact, "--stack": stack, "--network": network if logs else None}
        if name in platform_names() or is_platform(Path(name)):
            refuse_given(given, "measurements, which a specification does without")
            return _specified(name, coverage)
        if is_trace(name):
            scale = float(options.fields(where, "--where").get("scale", 1))
            return _gradients(name, scale, word_list(density), int(seed or 0))
        if Path(name).is_dir() and any(Path(name).glob("rank_*.csv")):
            refuse_given(given, "times of collectives")
            return _computing(Path(name))
    if not logs:
        raise InputError("is missing: logs of benchmarks on this network, or a platform", file="LOGS")
    from simnet.cost_models.calibration import summary
    from simnet.cost_models.calibration.readers.tables import parse_facts
    from simnet.cost_models.calibration.topology_links import place_ranks
    from simnet.network.stack import stack_of
    from simnet.scenario.choice_text import read_choice

    rows, facts = options.fields(where, "--where"), parse_facts(fact)
    place = rows.pop("place", "out")
    check_choice(place, "place", ("in", "out"), file="--where")
    ranks = None if network is None else place_ranks(*read_choice(network))
    options.quantity(stack, "--stack", stack_of)
    return _fitted(summary.calibrate_logs(logs, rows, facts, place == "in", ranks, coverage, stack))


def _fitted(made: Calibration) -> Summary:
    """Return the command's answer for a cost model fitted to measured times, with the quality of the fit."""
    notes, errors, curves = made.notes(), made.errors(), made.cost_model.model.known
    warnings = [one for one in notes if one.startswith("warning: ")]
    known = f"{len(curves):,} curve{'s' * (len(curves) != 1)} from {made.rows:,} row{'s' * (made.rows != 1)}"
    remarks = f"{len(made.problems):,} remark{'s' * (len(made.problems) > 1)} on the logs, as"
    best = next((one for one in errors if one["chosen"]), None)
    off = f"{percent(best['median'])} in the median, {percent(best['p90'])} in nine of ten" if best else ""
    within, asked = f"; sizes left out are predicted within {off}" if best else "", made.next_question()
    return Summary(
        answer=f"{known}{within}{made.link_note()}.{made.inside_note()}",
        columns=table_columns("calibrate"),
        rows=errors,
        evidence="measured: curve models were chosen by their errors on held-out sizes" if best else "",
        assumed=f"{remarks} {made.problems[0]}" if made.problems else "",
        depends_on="; ".join(one.removeprefix("warning: ") for one in warnings),
        next=asked.format(out="fabric.yaml") + ", after --out fabric.yaml" * ("{out}" in asked),
        next_saved=asked,
        details=made.figures(),
        notes=[one for one in notes if one not in warnings],
        writers={".yaml": lambda path: path.write_text(made.yaml, encoding="utf-8")},
    )


def _specified(platform: str, coverage: float) -> Summary:
    """Return the command's answer for the cost model of a platform, made from the platform's specification alone."""
    from simnet.cost_models.calibration import specification
    from simnet.cost_models.calibration.cost_model import specified_cost_model
    from simnet.cost_models.calibration.cost_model_file import cost_model_yaml
    from simnet.cost_models.calibration.platform import load_platform

    described = load_platform(platform)
    text = cost_model_yaml(specified_cost_model(described, coverage))
    names = ("parameter", "value", "factor", "meaning")
    parameters = [dict(zip(names, row, strict=True)) for row in specification.parameter_rows(described)]
    return Summary(
        answer=f"{described.description or described.name}: a cost model from its specification.",
        columns=table_columns("calibrate platform"),
        rows=parameters,
        evidence="extrapolated: nothing was measured",
        next=f"simnet time all_reduce --network {platform}",
        details={"platform": described.model_dump(mode="json")},
        writers={".yaml": lambda path: path.write_text(text, encoding="utf-8")},
    )


def _computing(folder: Path) -> Summary:
    """Return the command's answer for compute times of workers, fitted to the workers' logs."""
    from simnet.base.arrays import PERCENTS
    from simnet.cost_models.calibration.compute_fit import fit_compute, read_compute_logs

    found = fit_compute(read_compute_logs(folder))
    rows = [
        {"share": f"p{share}", "measured_s": measured, "fitted_s": ours}
        for share, measured, ours in zip(PERCENTS, found.measured, found.fitted, strict=True)
    ]
    percentiles: dict[str, Any] = {
        name: {f"{row['share']}_s": row[f"{name}_s"] for row in rows} for name in ("measured", "fitted")
    }
    fitted = {name: getattr(found, name) for name in ("mean", "spread", "straggle", "slowdown")}
    slow = {str(worker): factor for worker, factor in found.slow.items()}
    fields = ", ".join(f"{name}: {value}" for name, value in found.fields().items()).replace("'", "")
    return Summary(
        answer=f"job.compute={{{fields}}}",
        columns=table_columns("calibrate compute"),
        rows=rows,
        evidence=f"measured: fitted to every other of {found.iterations} iterations of {found.workers} workers",
        next="--set with this answer, or --out compute.yaml for the lines of a scenario",
        next_saved="",
        details={**fitted, "slow": slow, "of_iterations_left_out": percentiles},
        writers={".yaml": lambda path: path.write_text(found.text(), encoding="utf-8")},
    )  # fmt: skip


def _gradients(trace: str, scale: float, density: list[str] | None, seed: int) -> Summary:
    """Return the command's answer for synthetic gradients fitted to a trace, with the errors of their statistics."""
    from simnet.studies import options
    from simnet.studies.trace_files import fit_trace
    from simnet.traces import comparing

    parameters, found = fit_trace(trace, scale, options.densities(density) or comparing.DENSITIES, seed)
    named = {
        "gain": "gain", "build_up": f"build-up, P = {found['workers']}", "overlap_workers": "overlap of workers",
        "overlap_time": "overlap over time", "threshold_over_rms": "threshold", "threshold_drift": "threshold drift",
    }  # fmt: skip
    sides = ("real", "synthetic", "ratio", "error")
    rows = [
        {"figure": label, "density": one["density"], **{side: one[key][side] for side in sides}}
        for one in found["densities"]
        for key, label in named.items()
    ]
    few = [f"{one['selected']} at {one['density']:g}" for one in found["densities"] if one["selected"] < comparing.FEW]
    return Summary(
        answer=f"Synthetic gradients like {trace}, beside the recorded ones.",
        columns=table_columns("calibrate gradients"),
        rows=rows,
        evidence="measured: means over recorded steps",
        depends_on=f"chance: a worker selects few entries ({', '.join(few)})" if few else "",
        next="--out params.json, then --gradients synthetic:like=params.json",
        next_saved="simnet run --gradients synthetic:like={out}",
        details=found,
        writers={".json": parameters.save},
    )  # fmt: skip
