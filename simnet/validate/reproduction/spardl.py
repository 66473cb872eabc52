"""Reproductions of volume, rounds and speed-ups of the SparDL paper.

References
----------
M. Zhao et al., "SparDL: Distributed Deep Learning Training with Efficient Sparse Communication", ICDE 2024, pp.
1752-1764, arXiv 2304.00737, and its reference implementation, github.com/ZJU-DAILY/SparDL.
"""

from __future__ import annotations

from simnet.sparsifier_models import create
from simnet.validate.published import read_published
from simnet.validate.reproduction.gains import iterations_of
from simnet.validate.reproduction.oktopk import claims, noise
from simnet.validate.reproduction.table import Interval, Row, reproduces

PAPER = "SparDL"

_LARGE, _BLOCK = 100_000, 100
_SETTLED = 20


@reproduces("spardl-volume", PAPER, "released code")
def volume() -> list[Row]:
    """Return the bytes that all workers send in each phase of SparDL with one team.

    Payload of released code for 14 settings, among them VGG-16 on 6 and 14 workers (here on a sample of its gradient).
    All have one team: with several the bytes depend on the data, and tests compare those with golden runs.
    """
    rows = []
    for row in read_published("spardl_bytes.csv").to_dict("records"):
        workers, parameters = row["workers"], row["parameters"]
        # A block of the sample has so many entries that its bytes are those of a block of the gradient.
        scale = int(parameters * row["density"]) // workers / _BLOCK if parameters > _LARGE else 1
        entries = round(parameters / scale)
        model = create("spardl", workers, entries, row["density"], scale=scale)
        rounds = model.exchange(noise(workers, entries, 0)).schedule.rounds
        ours = sum(float(one.nbytes.sum()) for one in rounds if one.phase == row["phase"])
        what = f"{workers} workers, {parameters:,} entries, density {row['density']:g}, {row['phase']}"
        rows.append(Row(what, row["published_bytes_of_all"], ours, "byte", 1e-3, absolute=True))
    return rows


@reproduces("spardl-rounds", PAPER, "released code")
def rounds() -> list[Row]:
    """Return the distance to the receiver [ranks] and the blocks sent in each round of SparDL, for 2 to 32 workers.

    Ours are the messages that the scheme sends. The released code sends the blocks of a bag one by one; the paper
    describes one message per round, and ceil(log2 P) rounds.
    """
    rows = []
    for row in read_published("spardl_rounds.csv").astype(str).to_dict("records"):
        workers = int(row["workers"])
        model = create("spardl", workers, 20 * workers, 0.05)
        schedule = model.exchange(noise(workers, 20 * workers, 0)).schedule
        mine = [one for one in schedule.rounds if one.phase == "spar-reduce-scatter"]
        distances = "-".join(str(int((one.dst[0] - one.src[0]) % workers)) for one in mine)
        # A block has one entry of 8 bytes.
        blocks = "-".join(str(round(float(one.nbytes[0]) / 8)) for one in mine)
        rows.append(Row(f"{workers} workers, distances", row["distances"], distances, "", 0.0))
        rows.append(Row(f"{workers} workers, blocks", row["blocks"], blocks, "", 0.0))
    return rows


@reproduces("spardl-speed-up", PAPER, "abstracts of both versions", slow=True)
def speed_up() -> list[Row]:
    """Return the speed-up of SparDL over other schemes.

    The scenario `spardl_vgg16`, its last 20 iterations; SparDL has the best of 1, 2 and 4 teams. The cluster, the
    number of workers and the baselines of the published factors (1.2 to 3.7; up to 4.9; up to 1.98 over the state of
    the art) are not known. So links and compute time are assumed, and nothing is tested.
    """
    # The second version says up to a higher factor, of a baseline that it does not name.
    factors = claims(PAPER).values()
    published = Interval(min(factors), max(factors))
    means = {name: one.iloc[_SETTLED:] for name, one in iterations_of("spardl_vgg16").items()}
    teams = {name: times for name, times in means.items() if name.startswith("SparDL")}
    own = min(float(times["iteration_s"].mean()) for times in teams.values())
    own_communication = min(float(times["communicate_s"].mean()) for times in teams.values())
    rows = []
    for name, times in means.items():
        if name not in teams:
            whole = float(times["iteration_s"].mean()) / own
            part = float(times["communicate_s"].mean()) / own_communication
            rows.append(Row(f"over {name}, iteration", published, whole, "x", None))
            rows.append(Row(f"over {name}, communication alone", "not published", part, "x", None))
    return rows
