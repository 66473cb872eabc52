"""Files of platforms: what is refused is told with its line and field, and names are told from files."""

from pathlib import Path

import pytest

from simnet.base.errors import InputError
from simnet.cost_models.calibration.platform import Platform, is_platform, load_platform

GOOD = "name: x\ndevices_per_node: 8\ngeneration: hopper\ninner: {link: nvlink, rate: 450 GB/s}\n"
OUTER = "outer: {transport: roce, nics: 2, rate: 100 Gbit/s}\n"
GENERATIONS = "Allowed: ampere, blackwell, cdna, cpu, hopper, older, volta"
LONG = "x" * 90


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("hopper", "hoper", f"3: generation: there is no generation 'hoper'; did you mean 'hopper'? {GENERATIONS}"),
        ("hopper", "3", f"3: generation: there is no generation 3; {GENERATIONS}"),
        ("hopper", "[1]", f"3: generation: there is no generation [1]; {GENERATIONS}"),
        ("hopper", LONG, f"3: generation: there is no generation '{LONG[:59]}; {GENERATIONS}"),
        ("e: 8", "e: 0", "2: devices_per_node: must be >= 1, got 0"),
        ("450 GB/s", "450", "4: inner.rate: 450 has no unit; write e.g. '450 Gbit/s'"),
        # What has fields of its own is not shown.
        ("rate: 450 GB/s", "switch_reduction: true", "4: inner.rate: is missing"),
        ("name: x\n", "", "1: name: is missing"),
        ("roce", "tcp", "5: outer.transport: there is no transport 'tcp'; did you mean 'tcpx'? "
         "Allowed: efa, infiniband, roce, slingshot, sockets, tcpx"),
        ("{transport: roce, nics: 2, rate: 100 Gbit/s}", "7",
         "5: outer: must be a mapping, got 7"),
        ("outer", "more", "5: more: there is no such field"),
        ("nics", "more: 1, nics", "5: outer.more: there is no such field"),
    ],
)  # fmt: skip
def test_what_is_refused_is_told_with_its_line_and_field(tmp_path, monkeypatch, before, after, said):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text((GOOD + OUTER).replace(before, after, 1))
    with pytest.raises(InputError) as refused:
        load_platform("mine.yaml")
    assert str(refused.value) == f"mine.yaml:{said}"


def test_names_are_those_of_platforms_unless_they_look_like_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("lone").write_text(GOOD)
    assert load_platform("lone").name == "x"
    for name in ("polari.yaml", "./polari", Path("polari")):
        with pytest.raises(InputError, match=r"polari(\.yaml)?: there is no such file"):
            load_platform(name)
    with pytest.raises(InputError, match="there is no platform 'polari'; did you mean 'polaris'"):
        load_platform("polari")
    # A platform of simnet's is not looked for among files.
    Path("polaris").write_text(GOOD)
    assert load_platform("polaris").name == "polaris"


def test_platforms_are_known_by_the_first_64_kib_of_a_file(tmp_path):
    file = tmp_path / "one.yaml"
    mark = "\ndevices_per_node:"
    for length, said in ((2**16 - len(mark), True), (2**16 - len(mark) + 1, False)):
        file.write_text("#".ljust(length, "x") + mark)
        assert is_platform(file) == said
    assert not is_platform(tmp_path)


def test_nodes_are_as_many_as_hold_the_ranks_and_one_without_a_network(tmp_path):
    (tmp_path / "alone.yaml").write_text(GOOD)
    (tmp_path / "several.yaml").write_text(GOOD + OUTER)
    alone, several = (load_platform(tmp_path / f"{name}.yaml") for name in ("alone", "several"))
    assert [alone.nodes(ranks) for ranks in (1, 8, 9)] == [1, 1, 1]
    assert [several.nodes(ranks) for ranks in (1, 8, 9, 16, 17)] == [1, 1, 2, 2, 3]


def test_what_is_not_said_of_a_platform():
    one = Platform.model_validate({
        "name": "x", "devices_per_node": 8, "generation": "ampere", "inner": {"link": "nvlink", "rate": "300 GB/s"},
        "outer": {"transport": "roce", "nics": 4, "rate": "200 Gbit/s"},
    })  # fmt: skip
    assert (one.library, one.description, one.sources) == ("nccl", "", ())
    assert (one.inner.switch_reduction, one.outer.switch_reduction, one.outer.device_direct) == (False, False, True)


@pytest.mark.parametrize(
    ("transport", "direct", "ordered"),
    [("infiniband", True, True), ("roce", True, True), ("roce", False, False), ("efa", True, False)],
)
def test_messages_are_in_order_over_infiniband_and_roce_alone(transport, direct, ordered):
    fields = load_platform("dgx-h100").model_dump(mode="json")
    fields["outer"] |= {"transport": transport, "device_direct": direct}
    assert Platform.model_validate(fields).outer.ordered == ordered
