"""Which buckets to compress, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from simnet.base.errors import InputError
from simnet.base.units import format_bytes, format_seconds
from simnet.policies import Candidate
from simnet.report.learning import IGNORED
from simnet.report.paired import fastest
from simnet.report.tables import empty_table
from simnet.report.wording import standing
from simnet.scenario import Scenario
from simnet.scenario.resolve import candidate
from simnet.studies.choosing.tensors import Tensors, choose_tensors
from simnet.studies.options import of_gradients

_HEADINGS = (
    "bucket", "entries", "dense", "compressed", "encode", "decode", "exposed", "slack",
    "alone it\nwould be", "decision",
)  # fmt: skip


class OnTensors(NamedTuple):
    """The decision which buckets of a job to compress, by each of some exchanges.

    Parameters
    ----------
    title : str
        What is asked, on one line.
    found : tuple of Tensors
        The fastest first.
    dense_algorithm : str
        The all-reduce of buckets that stay dense.
    """

    title: str
    found: tuple[Tensors, ...]
    dense_algorithm: str

    @property
    def weighed(self) -> str:
        """What `bars` are of."""
        return "an iteration, between all compressed and all dense"

    def ranking(self) -> Table:
        """Return the buckets by the fastest exchange, in the order in which they become ready."""
        best = self.found[0]
        table = empty_table(f"{self.title}; by {best.candidate.label}", _HEADINGS, ["bucket", "decision"])
        for row in best.rows:
            more = f" and {len(row.layers) - 1} more" if len(row.layers) > 1 else ""
            times = row.dense, row.compressed, row.encode, row.decode, row.exposed, row.slack
            cells = (
                f"{row.layers[0]}{more}",
                f"{row.entries:,}",
                *map(format_seconds, times),
                _word(compress=row.alone),
                _word(compress=row.compress),
            )
            table.add_row(*map(Text, cells), style="bold" if row.alone != row.compress else "")
        return table

    def sentences(self) -> list[str]:
        """Return what an iteration takes as decided, all dense and all compressed, and how to run it."""
        said = []
        if len(self.found) > 1:
            seconds = {one.candidate.label: one.chosen for one in self.found}
            said.append(standing(seconds, self.first, "is fastest", "are tied as fastest", " an iteration"))
        for one in self.found:
            stay = [row for row in one.rows if not row.compress]
            better = min(one.all_dense, one.all_compressed)
            less = (
                f"{100 * (1 - one.chosen / better):.2g} % less than the better of these" if one.chosen < better else ""
            )
            said.append(
                f"{one.candidate.label}: an iteration takes {format_seconds(one.chosen)} with {len(stay)} of "
                f"{len(one.rows)} buckets dense ({format_bytes(4.0 * sum(row.entries for row in stay))}), "
                f"{format_seconds(one.all_dense)} with all dense and {format_seconds(one.all_compressed)} with all "
                f"compressed{', ' if less else ''}{less}."
            )
        best = self.found[0]
        differ = sum(row.alone != row.compress for row in best.rows)
        if differ:
            said.append(
                f"Of {differ} buckets the decision differs from what it would be alone, where compressing pays if it "
                "saves more of the messages than its kernels take: on the timeline, one or the other is hidden."
            )
        said.append(f"To run it: {' '.join(self.fields(best))}." if best.dense else "It runs as the scenario says.")
        said.append(
            f"Times are means of the first {best.iterations} iterations, simulated in full; dense buckets go by "
            f"{self.dense_algorithm}. Buckets were decided one after another: some other choice may be better still."
        )
        return [*said, IGNORED]

    @property
    def first(self) -> list[str]:
        """The fastest exchange, and those that are tied with it."""
        return fastest({one.candidate.label: one.chosen for one in self.found})

    @staticmethod
    def fields(one: Tensors) -> list[str]:
        """Return the options of `simnet run` that run it.

        Parameters
        ----------
        one : Tensors
            The decision.
        """
        if one.dense_below is not None:
            return [f"--set job.overlap.dense_below={one.dense_below}", "--set job.overlap.dense=null"]
        return ["--set job.overlap.dense_below=null", f"--set 'job.overlap.dense={json.dumps(list(one.dense))}'"]

    def figures(self) -> dict[str, Any]:
        """Return the decision for programs; names end in units."""
        best = self.found[0]
        return {
            "question": {"title": self.title, "method": "simulated", "iterations": best.iterations},
            "ranking": [
                {
                    "exchange": one.candidate.label,
                    "scheme": one.candidate.scheme,
                    "options": dict(one.candidate.options),
                    "chosen_s": one.chosen,
                    "all_dense_s": one.all_dense,
                    "all_compressed_s": one.all_compressed,
                    "dense_below": one.dense_below,
                    "dense": list(one.dense),
                    "buckets": [
                        {
                            "layers": list(row.layers),
                            "entries": row.entries,
                            "dense_s": row.dense,
                            "compressed_s": row.compressed,
                            "encode_s": row.encode,
                            "decode_s": row.decode,
                            "exposed_s": row.exposed,
                            "slack_s": row.slack,
                            "compress": row.compress,
                            "compress_alone": row.alone,
                        }
                        for row in one.rows
                    ],
                }
                for one in self.found
            ],
            "decision": best.candidate.label,
            "tied_with": [label for label in self.first if label != best.candidate.label],
        }

    def chances(self) -> dict[str, float]:
        """Return 1 for the fastest exchange, shared by those tied, and 0 for others: nothing is said of errors."""
        labels = [one.candidate.label for one in self.found]
        return {label: float(label in self.first) / len(self.first) for label in labels}

    def bars(self) -> list[tuple[str, float, float, float]]:
        """Return each exchange with an iteration as decided, and the slower end beside it [s], the fastest first."""
        return [
            (one.candidate.label, one.chosen, one.chosen, max(one.all_dense, one.all_compressed)) for one in self.found
        ]


def _word(*, compress: bool) -> str:
    return "compress" if compress else "dense"


def on_tensors(loaded: Scenario, named: Sequence[Candidate] = ()) -> OnTensors:
    """Return which buckets of the job of a scenario to compress.

    Parameters
    ----------
    loaded : Scenario
        The scenario.
    named : sequence of Candidate
        Exchanges in place of those of the scenario.

    Raises
    ------
    InputError
        If there is no exchange that compresses, or the job has no buckets that could be decided about.
    """
    of_gradients(loaded, "buckets are of jobs that exchange gradients in every iteration")
    if loaded.config.other_jobs:
        raise InputError("is not for jobs whose network is shared", field="other_jobs")
    own = [candidate(label, exchange) for label, exchange in loaded.config.exchanges.items()]
    among = [one for one in named or own if one.scheme != "dense"]
    if not among:
        raise InputError("has no exchange that compresses; name some by --schemes", file=loaded.name)
    job = loaded.build().job
    found = sorted((choose_tensors(job, one) for one in among), key=lambda one: one.chosen)
    assert job.overlap is not None
    title = (
        f"{loaded.name}, {job.source.workers} workers, {len(found[0].rows)} buckets, "
        f"{format_bytes(4.0 * job.source.true_parameters)} gradient; device {job.device.name}"
    )
    return OnTensors(title, tuple(found), job.overlap.dense_algorithm)
