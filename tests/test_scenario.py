"""The scenario file: what it may say, what it comes to, and what is said about a wrong one."""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from commands import did
from fuzz import mutations
from simnet import scenario
from simnet.base import units
from simnet.base.errors import InputError, SimnetError
from simnet.network.weather import profile_state
from simnet.policies import density_at
from simnet.scenario import Scenario, load, loader, network_parts, schema
from simnet.training.job.running import run_policy

BASE = """\
name: small
seed: 3
workers: 4
network:
  topology:
    star: {latency: 1 ms, bandwidth: 1 Gbit/s}
job:
  parameters: 2000
  iterations: 4
  density: 0.01
  compute: {mean: 10 ms}
exchanges:
  AG: {scheme: topk}
  ART-ring: {scheme: artopk, collective: ring}
policies:
  AG: {fixed: AG}
  flexible: {flexible: {}}
  oracle: {oracle: }
output: {report: false}
"""

SITES = "sites: [a, b], workers_per_site: 2"


def from_text(folder: Path, text: str, *overrides: str) -> Scenario:
    path = folder / "a.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, overrides)


def refusal(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(InputError) as refused:
        from_text(folder, text, *overrides).build()
    return str(refused.value).replace(str(folder / "a.yaml"), "a.yaml")


def weather(*entries: str) -> str:
    return "network.weather=[" + ", ".join(entries) + "]"


def value(run: scenario.Run, src: int, dst: int, t: float, iteration: int = 0) -> tuple[float, float]:
    latency, bandwidth = run.job.network(iteration).path(src, dst, t)
    return latency, bandwidth


# Reading


@pytest.mark.parametrize(
    ("text", "said"),
    [("- 1", "1: must be a mapping"), ("", "1: must be a mapping"), ("a: 1\n---\nb: 1", "2: .*single document")],
)
def test_what_is_no_single_mapping_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=f"^a.yaml:{said}"):
        loader.Document(text, "a.yaml")


def test_an_alias_bomb_is_refused_and_a_plain_alias_is_not() -> None:
    layers = "".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 10))
    with pytest.raises(InputError, match=r"aliases for more than 50,000 values"):
        loader.Document(f"a0: &a0 [x]\n{layers}", "a.yaml")
    assert loader.Document("a: &x [1, 2]\nb: *x", "a.yaml").data == {"a": [1, 2], "b": [1, 2]}


def test_what_is_no_file_or_no_text_or_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    (tmp_path / "long.yaml").write_text("#" * (loader.MAX_BYTES + 1))
    messages = {".": "is not a file", "no.yaml": "no such file", "latin.yaml": "UTF-8", "long.yaml": "larger than"}
    for name, message in messages.items():
        with pytest.raises(InputError, match=message):
            load(tmp_path / name)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        loader.Document(text, "a.yaml")


# What is wrong, where, and how to mend it


@pytest.mark.parametrize(
    ("found", "written", "messages"),
    [
        ("bandwidth: 1 Gbit/s", "bandwidth: 1 ms",
         ["a.yaml:6: network.topology.star.bandwidth", "is not a bandwidth", "25 Gbit/s"]),
        ("bandwidth: 1 Gbit/s", "bandwidth: 10", ["no unit", "10 Gbit/s"]),
        ("bandwidth: 1 Gbit/s", "bandwidth: 0 bit/s", ["a.yaml:6", "must be > 0, got '0 bit/s'"]),
        ("latency: 1 ms", "latency: 1 mss", ["a.yaml:6", "did you mean 'ms'"]),
        ("star:", "stra:", ["a.yaml:6: network.topology.stra", "did you mean 'star'"]),
        ("{latency: 1 ms,", "{", ["a.yaml:6: network.topology.star.latency: is missing"]),
        ("    star: {latency: 1 ms, bandwidth: 1 Gbit/s}", "    {}",
         ["a.yaml:5: network.topology: needs one of star, ring"]),
        ("workers: 4", "workers: 0", ["a.yaml:3: workers: must be >= 1, got 0"]),
        ("workers: 4", "workers: true", ["a.yaml:3: workers: must be a whole number, got True"]),
        ("workers: 4\n", "", ["a.yaml:1: workers: is missing"]),
        ("workers: 4", "wokers: 4",
         ["a.yaml:3: wokers: there is no such field; did you mean 'workers'?", "workers: is missing"]),
        ("density: 0.01", "density: 0.01\n  bucket: 1 MB", ["job.bucket: there is no", "overlap: {bucket:"]),
        ("density: 0.01", "density: 0.01\n  workers: 4", ["job.workers: there is no", "write workers: ... at the top"]),
        ("workers: 4", "workers: 4\nlatency: 1 ms", ["latency: there", "write network: {topology: {star: {latency"]),
        ("{fixed: AG}", "AG", ["policies.AG.AG: there is no such field; write policies: {AG: {fixed: AG}}"]),
        ("  iterations: 4\n", "", ["job.iterations: is missing; write iterations: 300"]),
        ("density: 0.01", "density: 0", ["a.yaml:10: job.density: must be > 0, got 0"]),
        ("density: 0.01", "density: 1.5", ["a.yaml:10: job.density: must be <= 1, got 1.5"]),
        ("density: 0.01", "density: [{iterations: 3, from: 1, to: 0}]", ["a.yaml:10: job.density[0].to: must be > 0"]),
        ("density: 0.01", "density: [{at: 0.1}, {at: 0.2}]", ["a.yaml:10: job.density[0].iterations: is missing"]),
        ("  density: 0.01\n", "", ["a.yaml:7: job: needs density"]),
        ("iterations: 4", "iterations: 2 epochs", ["a.yaml:9: job.iterations", "no job.epoch"]),
        ("parameters: 2000", "model: resnet51", ["a.yaml:8: job.model", "did you mean 'resnet50'"]),
        ("parameters: 2000", "parameters: 2000\n  model: resnet50", ["a.yaml:9: job", "either model or parameters"]),
        ("parameters: 2000\n", "gradients: {recorded: digts}\n", ["a.yaml:8: job.gradients", "did you mean 'digits'"]),
        ("parameters: 2000\n", "gradients: {recorded: ./nowhere}\n", ["nowhere", "needed by a.yaml:8: job.gradients"]),
        ("parameters: 2000", "parameters: 2000\n  device: v10", ["a.yaml:9: job.device", "did you mean 'v100-"]),
        ("parameters: 2000", "parameters: 2000\n  device: ./v100.yaml",
         ["v100.yaml: there is no such file", "needed by a.yaml:9: job.device"]),
        ("compute: {mean: 10 ms}", "compute: {mean: 10 ms, slow: {4: 2}}", ["job.compute.slow.4", "0 to 3"]),
        ("scheme: topk", "scheme: topq", ["a.yaml:13: exchanges.AG.scheme", "did you mean 'topk'"]),
        ("scheme: topk", "scheme: topk, allgather: rang", ["a.yaml:13: exchanges.AG.allgather", "did you mean 'ring'"]),
        ("{scheme: topk}", "tpk", ["a.yaml:13: exchanges.AG.scheme: there is no sparsifier", "did you mean 'topk'?"]),
        ("fixed: AG", "fixed: ART-rign", ["a.yaml:16: policies.AG.fixed", "did you mean 'ART-ring'"]),
        ("flexible: {flexible: {}}", "flexible: {flxible: {}}",
         ["a.yaml:17: policies.flexible.flxible", "did you mean 'flexible'"]),
        ("flexible: {flexible: {}}", "both: {flexible: {}, fixed: AG}",
         ["a.yaml:17: policies.both: takes only one", "fixed and flexible"]),
        ("flexible: {flexible: {}}", "f: {moo: {mode: gird}}",
         ["a.yaml:17", "did you mean 'grid'", "published"]),
        ("{scheme: topk}", "{scheme: topk, wire: released}",
         ["a.yaml:17: policies.flexible", "no closed form is known"]),
        ("name: small", "name: ../../etc", ["a.yaml:1: name"]),
        ("output: {report: false}", "output: {report: 3}", ["a.yaml:19: output.report: must be true or false, got 3"]),
        ("output: {report: false}", "memory: 1 MB", ["a.yaml:19: memory: must be at least"]),
    ],
)  # fmt: skip
def test_a_wrong_scenario_is_refused(tmp_path: Path, found: str, written: str, messages: list[str]) -> None:
    assert BASE.count(found) == 1
    refused = refusal(tmp_path, BASE.replace(found, written))
    for message in messages:
        assert message in refused, refused


@pytest.mark.parametrize(
    ("entry", "messages"),
    [
        ("{links: al, bandwidth: {factor: 1}}", ["network.weather[0].links", "did you mean 'all'"]),
        ("{links: all}", ["network.weather[0]: needs at least one of bandwidth, latency"]),
        ("{links: all, bandwidth: {stepz: {}}}", ["network.weather[0].bandwidth.stepz", "did you mean 'steps'"]),
        ("{links: all, latency: {mahimahi: {file: a}}}", ["network.weather[0].latency.mahimahi", "no such field"]),
        ("{links: all, bandwidth: {constant: 3}}", ["network.weather[0].bandwidth.constant", "no unit"]),
        ("{links: all, bandwidth: {steps: {at: [0 s], factors: [1, 2]}}}", ["as many values as times, got 2 for 1"]),
        ("{links: all, bandwidth: {steps: {at: [0 s, 0 s], factors: [1, 2]}}}", ["bandwidth.steps", "ascend"]),
        ("{links: all, bandwidth: {outages: {up: 3 s}}}", ["takes either up and down, or spans"]),
        ("{links: all, trace: {file: no.csv}}",
         ["no.csv", "there is no such file", "needed by", "network.weather[0].trace"]),
        ("{links: all, profile: {name: C3, epoch: 3 s}}", ["network.weather[0].profile", "Allowed: C1,"]),
        ("{links: all, profile: {name: C1}}", ["network.weather[0].profile.epoch: is missing"]),
        ("{links: all, bandwidth: {constant: 1 bps}}, {links: 'host:1', bandwidth: {constant: 2 bps}}",
         ["network.weather[1].bandwidth.constant", "network.weather[0].bandwidth.constant does"]),
    ],
)  # fmt: skip
def test_wrong_weather_is_refused(tmp_path: Path, entry: str, messages: list[str]) -> None:
    refused = refusal(tmp_path, BASE, weather(entry))
    assert "--set network.weather" in refused
    for message in messages:
        assert message in refused, refused


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("network.background=[{load: {links: nowhere, rate: 1 Mbit/s}}]", "names no links"),
        ("network.background=[{flow: {from: 0, to: 9}}]", "there is no host 9; allowed: 0 to 3"),
        ("network.background=[{flow: {from: 1, to: 1}}]", "another host"),
        ("network.placement=[0, 1, 2]", "a host for each of the 4 workers, got 3"),
        ("network.placement=[0, 1, 2, 4]", "network.placement[3]: there is no host 4; allowed: 0 to 3"),
        ("network.placement=pakced", "did you mean 'packed'"),
        ("network.jitter={uniform: {low: 2 ms, high: 1 ms}}", "network.jitter.uniform: high must be at least low"),
        ("network.topology={star: {hosts: 3, latency: 1 ms, bandwidth: 1 Mbit/s}}",
         "workers: must be at most 3, the hosts of the topology, got 4; raise network.topology.star.hosts to 4"),
        ("network.topology={fat_tree: {k: 3, latency: 1 ms, bandwidth: 1 Mbit/s}}", "must be a multiple of 2, got 3"),
        (f"network.topology={{wan: {{{SITES}, latency: [[0, 0], [0, 0]], bandwidth: [[0, 1 bps], [0, 0]]}}}}",
         "there is no route from host 2 (site b) to host 0 (site a)"),
        (f"network.topology={{wan: {{{SITES}, latency: [[0, 0]], bandwidth: [[0, 1 bps], [0, 0]]}}}}",
         "matrix of 2 by 2"),
    ],
)  # fmt: skip
def test_a_network_that_does_not_fit_is_refused(tmp_path: Path, override: str, message: str) -> None:
    assert message in refusal(tmp_path, BASE, override)


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    text = (
        BASE.replace("latency: 1 ms", "latency: 1 m")
        .replace("density: 0.01", "density: 2")
        .replace("seed: 3", "sed: 3")
    )
    lines = refusal(tmp_path, text).splitlines()
    assert lines[0] == "3 problems"
    assert [line.split(": ")[0].strip() for line in lines[1:]] == ["a.yaml:2", "a.yaml:6", "a.yaml:10"]
    text = BASE.replace(": topk", ": topq").replace("fixed: AG", "fixed: AQ").replace("parameters: 2000", "model: x")
    assert refusal(tmp_path, text).startswith("3 problems")


# Overrides


def test_overrides_are_yaml_and_are_checked_like_the_file(tmp_path: Path) -> None:
    found = from_text(
        tmp_path, BASE, "job.iterations=7", "network.topology.star.latency=3 ms", "job.compute.spread=5 %"
    )
    assert found.config.job.iterations == 7
    assert found.config.job.compute.spread == 0.05
    assert value(found.build(), 0, 1, 0.0)[0] == pytest.approx(3e-3)


def test_overrides_reach_into_lists_and_names_with_dots(tmp_path: Path) -> None:
    text = BASE.replace("density: 0.01", "density: [{iterations: 2, at: 0.5}, {at: 0.1}]").replace(
        "AG: {fixed", "A.G 1: {fixed"
    )
    found = from_text(tmp_path, text, "job.density.1.at=0.2", "policies.A.G 1.fixed=ART-ring")
    assert [density_at(found.build().job.density, iteration) for iteration in (0, 2)] == [0.5, 0.2]
    assert found.config.policies["A.G 1"].fixed == "ART-ring"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("jb.iterations=5", "--set jb.iterations: there is no such field in scenario 'small'; did you mean 'job'"),
        ("iteratons=5", "--set iteratons: there is no such field in scenario 'small'; did you mean 'iterations'"),
        ("job.compute.meen=5 ms", "did you mean 'mean'"),
        ("job.iterations.x=5", "job.iterations is 4, which has no field 'x'"),
        ("job..x=5", "field=value"),
        ("job.compute.mean=5", "--set job.compute.mean=5: job.compute.mean: 5 has no unit"),
        ("job.iterations=!!python/name:os.system x", "has the tag"),
    ],
)
def test_a_wrong_override_is_refused(tmp_path: Path, override: str, message: str) -> None:
    assert message in refusal(tmp_path, BASE, override)


def test_the_seed_decides_everything_random(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(BASE)
    assert load(path).config.seed == 3
    jobs = [load(path, (), seed).build().job for seed in (3, 4)]
    assert [job.seed for job in jobs] == [3, 4]
    assert not np.array_equal(jobs[0].source.gradients(0), jobs[1].source.gradients(0))
    with pytest.raises(InputError, match="--seed -1: seed"):
        load(path, (), -1)


# What a scenario comes to


def test_defaults_come_from_the_model(tmp_path: Path) -> None:
    text = BASE.replace("parameters: 2000", "model: resnet18\n  scale: 5000\n  overlap: {}").replace(
        "{mean: 10 ms}", "{}"
    )
    job = from_text(tmp_path, text).build().job
    assert job.compute.mean == 0.015
    assert job.overlap is not None
    assert job.overlap.backward == pytest.approx(2 / 3)
    assert job.source.true_parameters == 11_689_512


def test_without_policies_there_is_each_exchange_and_the_bound(tmp_path: Path) -> None:
    text = BASE[: BASE.index("policies:")]
    run = from_text(tmp_path, text).build()
    assert list(run.policies) == ["AG", "ART-ring", "oracle"]
    assert run.bound == "oracle"


def test_factors_multiply_and_absolute_values_replace(tmp_path: Path) -> None:
    steps = "steps: {at: [0 s, 10 s], factors: [1, 50 %]}"
    run = from_text(
        tmp_path,
        BASE,
        weather(
            f"{{links: all, bandwidth: {{{steps}, factor: 0.5}}, latency: {{factor: 3}}}}",
            "{links: 'host:0', bandwidth: {constant: 80 Mbit/s}}",
            "{links: 'host:1', bandwidth: {outages: {spans: [{at: 20 s, lasts: 5 s}]}}}",
        ),
    ).build()
    nominal = 1.25e8
    assert value(run, 2, 3, 0.0) == pytest.approx((3e-3, nominal * 0.5))
    assert value(run, 2, 3, 10.0) == pytest.approx((3e-3, nominal * 0.25))
    assert value(run, 0, 2, 0.0)[1] == pytest.approx(1e7 * 0.5)
    assert value(run, 1, 2, 19.9)[1] == pytest.approx(nominal * 0.25)
    assert value(run, 1, 2, 20.0)[1] == 0.0
    assert value(run, 1, 2, 25.0)[1] == pytest.approx(nominal * 0.25)


def test_noise_is_independent_on_each_link_unless_shared(tmp_path: Path) -> None:
    noise = "bandwidth: {noise: {sigma: 20 %, tau: 10 s}}"
    for shared, different in (("false", True), ("true", False)):
        network = (
            from_text(tmp_path, BASE, weather(f"{{links: all, shared: {shared}, {noise}}}")).build().job.network(0)
        )
        found = {network.links.capacity(link, 5.0)[0] for link in range(len(network.routes.links))}
        assert (len(found) == 8) is different
        assert all(0.2 < one / 1.25e8 < 5 for one in found)


def test_every_kind_of_signal_and_traffic_builds_and_runs(tmp_path: Path) -> None:
    (tmp_path / "link.csv").write_text("time_s,bandwidth_Mbit_s,latency_ms\n0,800,1\n60,80,2\n")
    (tmp_path / "link.down").write_text("".join(f"{1 + tick // 8}\n" for tick in range(800)))
    text = BASE.replace(
        "job:",
        """\
  placement: random
  overhead: {send: 5 us, receive: 5 us}
  jitter: {lognormal: {median: 10 us, sigma: 1}}
  weather:
    - {links: "host:0", trace: {file: link.csv, at_end: repeat, period: 2 min}}
    - {links: "host:1", bandwidth: {mahimahi: {file: link.down}}}
    - links: all
      bandwidth:
        factor: 90 %
        steps: {at: [0 s, 5 ms], factors: [1, 0.5], period: 10 ms}
        markov: {factors: [1, 0.5], dwell: [1 s, 1 s]}
        noise: {sigma: 0.1, tau: 1 s, every: 10 ms}
        diurnal: {amplitude: 10 %}
        outages: {up: 1 h, down: 1 ms}
      latency: {markov: {factors: [1, 2], dwell: [1 s, 1 s], transition: [[0, 1], [1, 0]], start: 0}}
  background:
    - load: {links: all, rate: 1 Mbit/s}
    - flow: {from: 0, to: 1, limit: 10 Mbit/s, when: {busy: 10 ms, idle: 10 ms}}
    - flow: {from: 2, to: 3, when: {spans: [{at: 0 s, lasts: 1 s}, {at: 2 s, lasts: 1 s}]}}
    - flow: {from: 1, to: 3}
job:""",
    )
    run = from_text(tmp_path, text).build()
    result = run_policy(run.job, "AG", run.policies["AG"])
    assert len(result.iterations) == 4
    assert (result.iterations["communicate_s"] > 0).all()


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8, 17])
def test_any_number_of_workers_runs(tmp_path: Path, workers: int) -> None:
    run = from_text(tmp_path, BASE, f"workers={workers}").build()
    for name, policy in run.policies.items():
        result = run_policy(run.job, name, policy)
        assert len(result.workers) == 4 * workers


@pytest.mark.parametrize(
    "override",
    [
        "workers=1000000000",
        "network.topology={star: {hosts: 1000000000, latency: 1 ms, bandwidth: 1 bps}}",
        "network.topology={fat_tree: {k: 100000, latency: 1 ms, bandwidth: 1 bps}}",
        "job.parameters=1000000000000",
        "job.iterations=100000000",
        "network.weather=[{links: all, bandwidth: {noise: {sigma: 1000, tau: 1 s}}}]",
        "network.weather=[{links: all, bandwidth: {factor: 1e300}}]",
        "job.compute.slow={0: 1e300}",
        "output.timeline=100000",
    ],
)
def test_what_is_too_much_is_refused_at_once(tmp_path: Path, override: str) -> None:
    assert "--set" in refusal(tmp_path, BASE, override) or "job.scale" in refusal(tmp_path, BASE, override)


def test_a_profile_by_time_gives_a_star_the_printed_state_from_host_to_host(tmp_path: Path) -> None:
    run = from_text(tmp_path, BASE, weather("{links: all, profile: {name: C2, epoch: 2 s}}")).build()
    for epoch in range(51):
        state = profile_state("C2", epoch)
        assert value(run, 0, 1, 2.0 * epoch + 1) == pytest.approx((state.latency, state.bandwidth))


def test_a_profile_by_iteration_changes_with_the_epochs_of_the_job(tmp_path: Path) -> None:
    profile = weather("{links: all, profile: {name: C1}}", "{links: all, bandwidth: {factor: 0.5}}")
    run = from_text(tmp_path, BASE, profile, "job.epoch=3").build()
    for iteration in range(153):
        state = profile_state("C1", iteration // 3)
        for time in (0.0, 1e4):
            assert value(run, 0, 1, time, iteration) == pytest.approx((state.latency, state.bandwidth / 2))


def test_placements(tmp_path: Path) -> None:
    tree = "network.topology={tree: {hosts: 9, arity: 3, latency: 1 ms, bandwidth: 1 Gbit/s}}"
    placed = {
        how: from_text(tmp_path, BASE, tree, f"network.placement={how}").build().job.placement
        for how in ("packed", "spread", "random", "[8, 1, 1, 0]")
    }
    assert placed["packed"] == [0, 1, 2, 3]
    assert placed["spread"] == [0, 3, 6, 1]
    assert placed["[8, 1, 1, 0]"] == [8, 1, 1, 0]
    random = placed["random"]
    assert random is not None
    assert len(set(random)) == 4
    assert set(random) <= set(range(9))


# Writing out


@pytest.mark.parametrize("name", sorted(scenario.shipped()))
def test_shipped_scenarios_build_and_their_locks_give_the_same_job(tmp_path: Path, name: str) -> None:
    found = load(name)
    assert found.name == name
    assert found.config.description
    again = from_text(tmp_path, found.lock())
    assert again.lock() == found.lock()
    runs = [one.build() for one in (found, again)]
    first, second = (run.job for run in runs)
    for name in ("iterations", "density", "compute", "device", "placement"):
        assert getattr(first, name) == getattr(second, name)
    assert list(runs[0].policies) == list(runs[1].policies)
    assert runs[0].bound == runs[1].bound
    if first.steps is not None:
        assert {way: one.step(1).graph for way, one in first.steps.items()} == {
            way: one.step(1).graph for way, one in (second.steps or {}).items()
        }
        return
    np.testing.assert_array_equal(first.source.gradients(1), second.source.gradients(1))
    for (start, network), (again_start, again_network) in zip(first.stages, second.stages, strict=True):
        assert start == again_start
        for link in range(len(network.routes.links)):
            for t in (0.0, 33.3, 1234.5):
                assert network.links.capacity(link, t) == again_network.links.capacity(link, t)
                assert network.links.latency(link, t) == again_network.links.latency(link, t)


def test_the_lock_spells_out_defaults_and_overrides(tmp_path: Path) -> None:
    lock = from_text(tmp_path, BASE, "job.iterations=9").lock()
    written = YAML(typ="safe", pure=True).load(lock)
    assert written["job"]["iterations"] == 9
    assert written["job"]["device"] == "v100-torch2.6"
    assert written["network"]["topology"]["star"]["hosts"] == 4
    assert written["exchanges"]["AG"]["allgather"] == "auto"
    assert written["policies"]["flexible"]["flexible"]["among"] == ["AG", "ART-ring"]
    order = ["name", "description", "seed", "workers", "network", "job", "exchanges", "policies", "output", "memory"]
    assert list(written) == order


def test_paths_of_overrides_start_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("wan.csv").write_text("timestamp,throughput_mbps,rtt_ms\n0,120,40\n1,80,55\n")
    weather = "network.weather=[{{links: all, trace: {{file: {}}}}}]".format
    shown = " ".join(did("show", "wan.csv").output.split())
    assert "bandwidth 80 Mbit/s to 120 Mbit/s, 2 steps; latency 20 ms to 27.5 ms" in shown
    ((_, path),) = from_text(tmp_path, BASE, weather("wan.csv")).inputs().items()
    assert path == tmp_path / "here" / "wan.csv"
    with pytest.raises(InputError, match=f"{tmp_path}/here/no/wan.csv: there is no such file"):
        from_text(tmp_path, BASE, weather("no/wan.csv")).build()


def test_the_lock_names_files_by_their_content(tmp_path: Path) -> None:
    text = BASE.replace("job:", "  weather: [{links: all, trace: {file: data/link.csv}}]\njob:")
    locks = []
    for folder, content in (("one", "0,80"), ("two", "0,80"), ("three", "0,81")):
        (tmp_path / folder / "data").mkdir(parents=True)
        (tmp_path / folder / "data" / "link.csv").write_text(f"time_s,bandwidth_Mbit_s\n{content}\n")
        found = from_text(tmp_path / folder, text)
        ((name, path),) = found.inputs().items()
        assert path == tmp_path / folder / "data" / "link.csv"
        assert name in found.lock()
        assert str(tmp_path) not in found.lock()
        locks.append(found.lock())
    assert locks[0] == locks[1] != locks[2]
    run_folder = tmp_path / "run"
    (run_folder / "inputs").mkdir(parents=True)
    (run_folder / name).write_bytes(path.read_bytes())
    again = from_text(run_folder, locks[2])
    assert again.lock() == locks[2]
    again.build()


@given(st.floats(0, 1e12, allow_nan=False), st.sampled_from(["seconds", "size", "rate"]))
def test_quantities_are_written_so_that_they_read_back_exactly(number: float, kind: str) -> None:
    number += kind == "size"
    part, field, unit, read = {
        "seconds": (network_parts.Overhead, "send", "s", units.seconds),
        "size": (schema.Overlap, "bucket", "B", units.size),
        "rate": (partial(network_parts.Load, links="all"), "rate", "B/s", units.bandwidth),
    }[kind]
    written = part(**{field: f"{number!r} {unit}"}).model_dump()[field]  # type: ignore[operator]
    assert read(written) == number


def test_the_json_schema_describes_the_shipped_scenarios() -> None:
    found = scenario.json_schema()
    assert found == json.loads(json.dumps(found))
    for path in scenario.shipped().values():
        _check(loader.read_scenario(path).data, found, found)


_TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": int | float, "boolean": bool,
    "null": type(None),
}  # fmt: skip


def _check(value: Any, part: dict[str, Any], root: dict[str, Any]) -> None:
    """Check the keywords of JSON Schema that the schema uses."""
    if "$ref" in part:
        _check(value, root["$defs"][part["$ref"].rsplit("/", 1)[1]], root)
        return
    for choices in (part.get(key) for key in ("anyOf", "oneOf")):
        if choices:
            assert any(_fits(value, choice, root) for choice in choices), (value, choices)
    kinds = part.get("type", [])
    if kinds:
        known = [_TYPES[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds)]
        assert isinstance(value, tuple(known)), (value, part)
    if "const" in part:
        assert value == part["const"]
    if "enum" in part:
        assert value in part["enum"]
    if isinstance(value, str):
        assert re.search(part.get("pattern", ""), value), value
    if isinstance(value, int | float):
        assert part.get("minimum", -math.inf) <= value <= part.get("maximum", math.inf)
    if isinstance(value, dict):
        assert set(part.get("required", ())) <= set(value)
        assert part.get("minProperties", 0) <= len(value) <= part.get("maxProperties", math.inf)
        for key, one in value.items():
            further = part.get("additionalProperties", True)
            inside = part.get("properties", {}).get(key, further)
            assert inside is not False, key
            if isinstance(inside, dict) and one is not None:
                _check(one, inside, root)
    if isinstance(value, list) and "items" in part:
        for one in value:
            _check(one, part["items"], root)


def _fits(value: Any, part: dict[str, Any], root: dict[str, Any]) -> bool:
    try:
        _check(value, part, root)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize(
    ("stack", "fits"),
    [
        (None, True),
        ("gloo", True),
        ({"like": "tcp", "before": "5 us", "before_byte": "0.3 ns", "rounds": 2}, True),
        ("glo", False),
        (["gloo"], False),
        ({"like": "glo"}, False),
        ({"send_completion": "sent"}, False),
        ({"lets": "left"}, False),
        ({"pieces": 65}, False),
        ({"before": 5}, False),
    ],
)
def test_what_loads_as_a_stack_fits_the_json_schema_and_nothing_else(tmp_path: Path, stack: Any, fits: bool) -> None:
    found = scenario.json_schema()
    data = loader.read_scenario(scenario.shipped()["quickstart"]).data
    if stack is not None:
        data["network"]["stack"] = stack
    assert _fits(data, found, found) == fits
    path = tmp_path / "a.yaml"
    path.write_text(json.dumps(data))
    if fits:
        scenario.load(path)
    else:
        with pytest.raises(InputError, match=r"network\.stack"):
            scenario.load(path)


# Whatever is in the file


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder, and a scenario with something of everything that is quick to build."""
    folder = tmp_path_factory.mktemp("mutated")
    (folder / "link.csv").write_text("time_s,bandwidth_Mbit_s\n0,80\n60,8\n")
    data = loader.Document(BASE, "a.yaml").data
    data["network"] |= {
        "placement": [0, 1, 2, 3],
        "overhead": {"send": "1 us"},
        "jitter": {"exponential": {"mean": "1 us"}},
        "weather": [
            {"links": "all", "bandwidth": {"steps": {"at": ["0 s", "1 s"], "factors": [1, 0.5], "period": "2 s"}}},
            {"links": "host:0", "trace": {"file": "link.csv"}},
            {"links": "host:1", "profile": {"name": "C1", "epoch": "3 s"}},
            {"links": "host:2", "latency": {"noise": {"sigma": 0.1, "tau": "1 s"}}},
        ],
        "background": [{"load": {"links": "all", "rate": "1 Mbit/s"}}, {"flow": {"from": 0, "to": 1}}],
    }
    data["job"]["density"] = [{"iterations": 2, "from": 1, "to": 0.1}, {"at": 0.1}]
    data["job"]["overlap"] = {"bucket": "1 MiB"}
    return folder, data


@pytest.mark.parametrize("seed", range(150))
def test_a_mutated_scenario_is_built_or_refused(rich: tuple[Path, Any], seed: int) -> None:
    folder, data = rich
    path = folder / "a.yaml"
    text = json.dumps(mutations.value(random.Random(seed), data, 1 + seed % 3))
    path.write_bytes(text.replace("NaN", ".nan").replace("Infinity", ".inf").encode(errors="surrogatepass"))
    message = str(path)
    try:
        found = load(path)
        found.build()
        found.lock()
    except SimnetError as error:
        message = str(error)
    assert str(path) in message or "link.csv" in message
