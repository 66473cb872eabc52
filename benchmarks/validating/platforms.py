"""Which platform each public set of measurements is of, and what its specification alone says of it.

A platform is written down from the description of the set and figures of vendors, never from the measured times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from simnet.base.arrays import Floats
from simnet.cost_models.calibration.curves import Setting, chosen_rows, curves_of
from simnet.cost_models.calibration.platform import Platform, load_platform
from simnet.cost_models.calibration.specification import specified_times


def platform(like: str | None = None, **fields: object) -> Platform:
    """Return a shipped platform with other fields, or one of these alone."""
    known = {} if like is None else load_platform(like).model_dump(mode="json")
    for part in ("inner", "outer"):
        if isinstance(fields.get(part), dict):
            fields[part] = (known.get(part) or {}) | fields[part]
    return Platform.model_validate({"name": like or "some"} | known | fields)


HOST = {"library": "mpi", "generation": "cpu", "inner": {"link": "memory", "rate": "12 GB/s"}}
OPEN_MPI = HOST | {"library": "openmpi"}
SOCKETS = {"outer": {"transport": "sockets"}}


def single(generation: str, link: str, inside: str, **outer: object) -> Platform:
    """Return a platform of one device per node."""
    inner = {"link": link, "rate": inside}
    return platform(devices_per_node=1, generation=generation, inner=inner, outer={"nics": 1} | outer)


@dataclass(frozen=True)
class Case:
    """A set of measurements and the platform that its description tells of.

    `nodes` says how many nodes there are where the inner link, or what was forced, does not end at a host.
    """

    name: str
    platform: Platform = field(compare=False)
    variant: str = ""
    nodes: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.variant}".strip()


T4 = ("older", "pcie", "15.75 GB/s")
CASES = (
    Case("alps_gh200_default", platform("alps-gh200")),
    Case("alps_gh200_fixed_hsn", platform("alps-gh200")),
    Case("aws_eks_t4_socket_vs_efa", single(*T4, transport="sockets", rate="50 Gbit/s"), "socket (ENA TCP)"),
    Case("aws_eks_t4_socket_vs_efa", single(*T4, transport="efa", rate="50 Gbit/s", device_direct=False), "efa"),
    Case(
        "aws_eks_t4_socket_vs_efa",
        single(*T4, transport="efa", rate="100 Gbit/s", device_direct=False),
        "efa g4dn.metal (terraform)",
    ),
    Case("aws_p4d_uccl_8", single("ampere", "nvlink", "300 GB/s", transport="efa", rate="50 Gbit/s"), nodes=8),
    Case("aws_p4de_2node", platform("aws-p4d")),
    Case("aws_p5_2node", platform("aws-p5")),
    Case("azure_aks_rdma_vs_ipoib", platform("azure-nd-a100-v4")),
    Case(
        "contention_10gbe_allreduce",
        platform(devices_per_node=1, outer={"transport": "sockets", "nics": 1, "rate": "10 Gbit/s"}, **HOST),
        "concurrent_jobs=1",
    ),
    Case("coreweave_h100_96", platform("dgx-h100")),
    Case("dgx1_2node_roce2x100", platform("dgx-1", outer={"transport": "roce", "nics": 2})),
    Case("dgxa100_2node_hdr_ring", platform("dgx-a100")),
    Case("dgxh100_1node", platform("dgx-h100")),
    Case("gcp_a3high_2node_ag", platform("gcp-a3-high")),
    Case("gcp_a3mega_2node_ar", platform("gcp-a3-mega")),
    Case("gcp_k80_2node_pkb", single(*T4, transport="sockets", rate="10 Gbit/s")),
    Case(
        "grid5000_2gpu_simgrid_val",
        platform(devices_per_node=2, generation="older", inner={"link": "pcie", "rate": "15.75 GB/s"}),
    ),
    Case("h100_cluster01_multi", platform("dgx-h100")),
    Case("h100_cluster01_single", platform("dgx-h100")),
    Case("oci_gb200_8", platform("gb200-nvl72")),
    Case("oci_mi300x_16_rccl", platform("oci-mi300x")),
    Case("pico_leonardo_host", platform("leonardo-booster", **OPEN_MPI), "OMPI"),
    Case("pico_mare_nostrum_gpu_nccl", platform("marenostrum5-acc")),
    Case("pico_mare_nostrum_host", platform("marenostrum5-acc", **OPEN_MPI), "OMPI|UCX_MAX_RNDV_RAILS=1"),
    *(Case("polaris_nccl_2_18", platform("polaris", **SOCKETS), one) for one in ("env1", "env2")),
    *(Case("polaris_nccl_2_18", platform("polaris"), one) for one in ("env3", "env4", "env5")),
    Case("polaris_osu_mpi", platform("polaris", **HOST)),
    Case(
        "rtx2080ti_nccl_10g_100g",
        platform(
            devices_per_node=4,
            generation="older",
            inner={"link": "pcie", "rate": "15.75 GB/s"},
            outer={"transport": "infiniband", "nics": 1, "rate": "100 Gbit/s", "device_direct": False},
        ),
        "100G",
    ),
    *(Case("sirius_nccl_2_18", platform("polaris", **SOCKETS), one) for one in ("env1", "env2")),
    *(Case("sirius_nccl_2_18", platform("polaris"), one) for one in ("env3", "env4", "env5")),
    Case("snellius_h100_1_2_nodes", platform("marenostrum5-acc")),
    Case("sophia_nccl", platform("dgx-a100")),
    Case("superbench_a100_8", platform("dgx-a100")),
    Case(
        "v100_roce25g_2node",
        single("volta", "nvlink", "150 GB/s", transport="roce", rate="25 Gbit/s", device_direct=False),
    ),
)
"""Sets of measurements whose descriptions tell the hardware, and the platforms that they and their vendors describe."""


def predicted(case: Case, rows: pd.DataFrame) -> list[tuple[Setting, Floats, Floats, Floats]]:
    """Return setting, sizes [byte], predicted and measured times [s] of each curve whose algorithm the platform has.

    Parameters
    ----------
    case : Case
        The set and its platform.
    rows : DataFrame
        The set, as `simnet.cost_models.calibration.readers` has it.
    """
    host = case.platform.counted == "through the schedule"
    known = ("ring_ompi", "recursive_doubling_ompi", "rabenseifner_ompi", "pairwise_ompi", "binomial_ompi")
    rows = chosen_rows(rows, {})
    if case.variant:
        rows = rows[rows["variant"].fillna("").astype(str) == case.variant]
    found = []
    for one in curves_of(rows):
        was = one.setting
        name = was.algorithm.casefold()
        last = name.rpartition("_")[2]
        if name and not (name.startswith((*known, "default")) if host else last in ("ring", "tree")):
            continue
        algorithm = "" if name.startswith("default") else name if host else last
        setting = Setting(was.collective, was.ranks, case.nodes or was.nodes, algorithm, was.protocol)
        seconds = specified_times(case.platform, setting, one.sizes)
        if seconds is not None:
            found.append((was, one.sizes, seconds, one.seconds))
    return found


def cases_of(name: str) -> Sequence[Case]:
    """Return the platforms of a set: one, or one for each of its variants; none where the hardware is not told."""
    return [case for case in CASES if case.name == name]
