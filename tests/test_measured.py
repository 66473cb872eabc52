"""Measurements that come with simnet: each is what its entry in the registry says, and plausible."""

import re

import numpy as np
import pandas as pd
import pytest

from simnet.base.errors import InputError
from simnet.cost_models import costs
from simnet.cost_models.calibration import measured
from simnet.cost_models.calibration.readers import TABLE_COLUMNS, read_measurements, total_bytes
from simnet.cost_models.calibration.readers.kinds import log_format

NAMES = sorted(measured.datasets())
PUBLIC = [name for name in NAMES if measured.datasets()[name].file.startswith("public/")]
"""Those that others measured on GPU clusters."""

FRAMING = 1538 / 1448
"""Bytes on the wire per byte of a full TCP segment over Ethernet."""


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_what_the_registry_says(name):
    entry, found = measured.datasets()[name], measured.load_dataset(name)
    rows = found.rows
    assert not found.problems
    assert len(rows) == entry.rows
    assert set(rows["collective"]) == set(entry.collectives)
    assert set(rows["ranks"]) == set(entry.ranks)
    assert set(rows.columns) == set(TABLE_COLUMNS) | set(entry.columns)
    assert set(rows["source"]) == {name}
    assert rows["size_convention"].ne("").all()
    assert total_bytes(rows).notna().all()
    for column, value in entry.facts.items():
        assert set(rows[column]) == {value}


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_says_what_a_reader_must_know(name):
    entry = measured.datasets()[name]
    for field in ("title", "source", "hardware", "interconnect", "date", "licence", "citation", "notes"):
        assert getattr(entry, field).strip(), field


def test_no_table_is_without_an_entry():
    from importlib.resources import as_file, files

    with as_file(files("simnet.cost_models.calibration.measured")) as folder:
        tables = {one.relative_to(folder).as_posix() for one in folder.rglob("*.csv") if "jobs" not in one.parts}
    tables -= {"residuals.csv"}
    assert tables == {entry.file for entry in measured.datasets().values()}


def test_public_tables_are_small_and_say_source_commit_and_terms():
    from importlib.resources import as_file, files

    with as_file(files("simnet.cost_models.calibration.measured")) as folder:
        assert sum(one.stat().st_size for one in folder.rglob("*") if one.is_file()) < 3_000_000
        terms = (folder / "public" / "LICENCES.md").read_text(encoding="utf-8")
    for name in PUBLIC:
        entry = measured.datasets()[name]
        repository, commit = re.fullmatch(r"(https://github\.com/[^/]+/[^/]+) at ([0-9a-f]{40})", entry.source).groups()
        assert repository in entry.citation
        assert commit
        row = next(line for line in terms.splitlines() if f"`{name}`" in line)
        assert f"<{repository}>" in row
        licence = entry.licence.partition(" ")[0]
        assert licence in ("MIT", "MIT-0", "Apache-2.0", "BSD-3-Clause")
        assert f"| {licence}" in row
        assert "Copyright" in row or licence in ("MIT-0", "Apache-2.0"), "MIT and BSD ask for the notice itself"
        assert licence == "Apache-2.0" or f"## {licence}" in terms


@pytest.mark.parametrize("name", PUBLIC)
def test_public_tables_have_every_size_and_rank_of_the_sets_they_are_from(shared, name):
    keys = ["collective", "algorithm", "protocol", "ranks", "nodes", "in_place", "nbytes"]
    theirs = read_measurements(shared / "measured" / name).rows
    theirs = theirs[theirs["ranks"].notna()]
    ours = measured.load_dataset(name).rows
    keys += ["variant"] if "variant" in ours else []
    settings = [{tuple(map(str, one)) for one in rows[keys].to_numpy()} for rows in (ours, theirs)]
    assert settings[0] == settings[1]
    rounded = ours.groupby(keys, dropna=False)["seconds"].median()
    medians = theirs.groupby(keys, dropna=False)["seconds"].median()
    np.testing.assert_allclose(rounded, medians, rtol=1e-5)


def test_they_are_tidy_files_like_any_other():
    from importlib.resources import as_file, files

    with as_file(files("simnet.cost_models.calibration.measured").joinpath("shaped_gloo.csv")) as path:
        assert log_format(path) == "tidy"
        assert len(read_measurements(path)) == 300


def test_what_is_not_there_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="there are no measurements 'shaped_glo'; did you mean 'shaped_gloo'"):
        measured.load_dataset("shaped_glo")


def test_dense_times_on_shaped_links_follow_from_the_links():
    rows = measured.load_dataset("shaped_openmpi").rows
    large = rows[(rows["nbytes"] >= 2**20) & (rows["link_bandwidth"] <= 1.25e7) & (rows["link_latency"] <= 1e-3)]
    latency, beta = large["link_latency"].to_numpy(), FRAMING / large["link_bandwidth"].to_numpy()
    size, ranks = large["nbytes"].astype(float).to_numpy(), large["ranks"].astype(float).to_numpy()
    rings = {"all_reduce": costs.ring_allreduce(latency, beta, size, ranks)}
    rings["all_gather"] = (ranks - 1) * (latency + size * beta)
    for name, formula in rings.items():
        of = ((large["collective"] == name) & (large["algorithm"] == "ring")).to_numpy()
        errors = np.abs(formula[of] / large["seconds"].to_numpy()[of] - 1)
        assert of.sum() > 20
        assert np.median(errors) < 0.03


def test_sizes_of_all_gathers_are_what_a_rank_contributes():
    rows = measured.load_dataset("shaped_openmpi").rows
    assert set(rows.loc[rows["collective"] == "all_gather", "size_convention"]) == {"per_rank"}


def test_sparse_sizes_are_the_values_that_are_kept():
    rows = measured.load_dataset("shaped_sparse").rows
    np.testing.assert_allclose(rows["nbytes"].astype(float), 4 * rows["density"] * rows["parameters"])


def test_published_numbers_name_their_page():
    rows = measured.load_dataset("published_plateaus").rows
    assert rows["url"].str.fullmatch(r"https://github\.com/[^/]+/[^/]+/blob/[0-9a-f]{40}/\S+").all()
    assert rows["platform"].is_unique
    assert rows["nbytes"].min() >= 2**31
    np.testing.assert_allclose(rows["algbw"], rows["nbytes"].astype(float) / rows["seconds"], rtol=1e-3)


def test_shaped_rows_are_those_beside_the_repository(shared):
    for name in ("shaped_openmpi", "shaped_gloo", "shaped_sparse"):
        theirs = pd.read_csv(shared / "netlab" / f"{name}.csv")
        ours = measured.load_dataset(name).rows
        assert ours["seconds"].tolist() == theirs["seconds"].tolist()
        assert ours["nbytes"].tolist() == theirs["size_bytes"].tolist()
        np.testing.assert_allclose(ours["link_latency"] * 1e3, theirs["latency_ms"])
        np.testing.assert_allclose(ours["link_bandwidth"] * 8e-6, theirs["rate_mbit"])
