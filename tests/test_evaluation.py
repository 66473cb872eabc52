"""Validation: what is shipped is predicted as well as recorded, ours is not worse than the plain models, no leaks."""

import json

import numpy as np
import pytest

from commands import did, refused
from simnet.cost_models.calibration import calibrate, measured
from simnet.cost_models.calibration.curves import curves_of, split_systems
from simnet.cost_models.calibration.readers import write_tidy
from simnet.validate.evaluation import SPLITS, evaluate, recorded_figures, worse_figures

PUBLIC = [name for name, one in measured.datasets().items() if one.file.startswith("public/")]
QUICK = ("shaped_gloo", "shaped_sparse", "published_plateaus")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in measured.datasets()],
)
def test_shipped_measurements_are_predicted_as_well_as_recorded(name):
    figures = evaluate(name).figures()
    assert worse_figures(figures, recorded_figures(name, SPLITS)) == []
    assert set(figures["splits"]) == set(recorded_figures(name, SPLITS))
    for split_name, split in figures["splits"].items():
        ours, segments = split["models"]["ours"]["all"], split["models"].get("three_segments")
        # Of a public cluster with two numbers of ranks, nothing tells how many cards a node has: ranks may be far off.
        if segments is not None and (split_name == "sizes" or name not in PUBLIC):
            assert ours["median"] <= segments["all"]["median"]


def test_what_is_validated_is_what_a_fabric_predicts():
    rows = measured.load_dataset("rtx2080ti_nccl_10g_100g").rows
    said = evaluate("rtx2080ti_nccl_10g_100g", splits=["ranks"]).held
    for system, part in split_systems(rows).items():
        curves = curves_of(part)
        for held in curves:
            fabric = calibrate([one for one in curves if one.setting.ranks != held.setting.ranks])
            here = said[(said["system"] == system) & (said["setting"] == str(held.setting))]
            for row in here.iloc[:: max(len(here) // 5, 1)].itertuples():
                asked = {"nodes": held.setting.nodes, "algorithm": held.setting.algorithm}
                found = fabric.predict(held.setting.collective, held.setting.ranks, row.size, **asked)
                assert (found.seconds, found.low, found.high) == (row.ours, row.low, row.high)


def test_sizes_of_public_gpu_curves_are_predicted_within_the_aims():
    """Every cluster alike, the aims for a size that was left out: median 2.5 %, p90 15 %, intervals 85 to 95 %.

    Single clusters may miss them: on two DGX-1 every third short message takes six times as long as the next, and the
    sizes of MareNostrum 5 are a factor of 8 apart. No cluster may be worse than three segments, and over all of them
    ours beats the line between neighbouring sizes, or the model is not worth its code.
    """
    medians, upper, held, against = [], [], [], []
    for name in PUBLIC:
        found = evaluate(name, splits=["sizes"])
        models = found.figures()["splits"]["sizes"]["models"]
        ours, neighbours, segments = (models[one]["all"] for one in ("ours", "log_log", "three_segments"))
        assert ours["median"] <= segments["median"], name
        medians.append(ours["median"])
        upper.append(ours["p90"])
        against.append(np.log(ours["median"] / neighbours["median"]))
        held += (
            (found.held["low"] <= found.held["measured"]) & (found.held["measured"] <= found.held["high"])
        ).tolist()
    assert np.median(medians) <= 0.025
    assert np.median(upper) <= 0.15
    assert np.mean(against) < 0
    assert 0.85 <= np.mean(held) <= 0.95


def test_sizes_of_the_largest_shipped_dataset_are_predicted_as_well_as_recorded():
    figures = evaluate("shaped_openmpi", splits=["sizes"]).figures()
    assert worse_figures(figures, {"sizes": recorded_figures("shaped_openmpi", SPLITS)["sizes"]}) == []
    assert 0.85 <= figures["splits"]["sizes"]["coverage"] <= 0.95


@pytest.mark.parametrize("name", ["gcp_a3high_2node_ag", "gcp_a3mega_2node_ar", "v100_roce25g_2node", "sophia_nccl"])
def test_public_curves_are_predicted_at_least_as_well_as_by_three_segments(shared, name):
    models = evaluate(str(shared / "measured" / name), splits=["sizes"]).figures()["splits"]["sizes"]["models"]
    for quantile in ("median", "p90"):
        assert models["ours"]["all"][quantile] <= models["three_segments"]["all"][quantile]
    assert models["ours"]["all"]["median"] <= 0.04


def test_what_got_worse_is_said():
    figures = evaluate("shaped_gloo", splits=["sizes"]).figures()
    entry = recorded_figures("shaped_gloo", SPLITS)["sizes"]
    better = entry | {"median": entry["median"] / 2, "count": entry["count"] + 1}
    said = worse_figures(figures, {"sizes": better, "ranks": entry})
    assert len(said) == 3
    assert "median" in " ".join(said)


def test_predictions_do_not_depend_on_what_was_left_out(tmp_path):
    rows = measured.load_dataset("shaped_gloo").rows
    rows = rows[(rows["link_latency"] == 1e-3) & (rows["collective"] == "all_reduce")]
    path = tmp_path / "log.csv"
    write_tidy(rows, path)
    before = evaluate(str(path), splits=["sizes"]).held
    for size in before["size"].unique():
        write_tidy(rows.assign(seconds=np.where(rows["nbytes"] == size, 99.0, rows["seconds"])), path)
        after = evaluate(str(path), splits=["sizes"]).held
        same = (before["size"] == size).to_numpy()
        assert np.allclose(before["ours"][same], after["ours"][same])


def test_figures_as_json_and_a_picture(tmp_path):
    picture = tmp_path / "predicted.svg"
    done = did("validate", "shaped_gloo", "--split", "sizes", "--json", "--check")
    did("validate", "shaped_gloo", "--split", "sizes", "--out", picture, "-q")
    (found,) = json.loads(done.stdout)["datasets"]
    bins = found["splits"]["sizes"]["models"]["ours"]
    assert bins["all"]["count"] == sum(one["count"] for name, one in bins.items() if one and name != "all")
    assert 0 <= found["splits"]["sizes"]["coverage"] <= 1
    assert picture.read_bytes().startswith(b"<?xml")


def test_a_fabric_file_is_compared_with_other_measurements(tmp_path):
    out = tmp_path / "fabric.yaml"
    where = ["--where", "link_latency=0.001", "--where", "link_bandwidth=12500000.0"]
    chosen = [*where, "--where", "collective=all_reduce", "--coverage", "0.8"]
    did("calibrate", "shaped_gloo", *chosen, "-o", out)
    compared = ("validate", "shaped_gloo", "--against", out)
    said = did(*compared).output
    assert "extrapolations" in said
    assert json.loads(did(*compared, "--json").stdout)["rows"][0]["asked_inside"] == 0.8
    for senseless in (["--split", "ranks"], ["--check"]):
        refused(*compared, *senseless)
    refused("validate", "no_such_log")


def test_a_log_of_which_nothing_is_recorded_is_not_checked(tmp_path):
    path = tmp_path / "log.csv"
    write_tidy(measured.load_dataset("shaped_gloo").rows, path)
    assert "only for shipped measurements" in refused("validate", path, "--check")
