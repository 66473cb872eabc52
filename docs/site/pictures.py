"""Draw the pictures of the manual: run the command of each, and take a file that it writes.

Without names all are drawn, in some minutes: ``python docs/site/pictures.py incast_breakdown.png``.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
PICTURES = {
    "fluctuating_wan.png": ("run fluctuating_wan", "runs/fluctuating_wan/figures/iteration_time.png"),
    "quickstart_choices.png": ("run quickstart", "runs/quickstart/figures/choices.png"),
    "time_to_accuracy_wan_learning.png": ("run time_to_accuracy_wan", "runs/time_to_accuracy_wan/figures/learning.png"),
    "incast_breakdown.png": ("run incast", "runs/incast/figures/breakdown.png"),
    "link_faults_iteration_time.png": ("run link_faults", "runs/link_faults/figures/iteration_time.png"),
    "compare.png": ("run compare --schemes topk,oktopk,spardl", "runs/compare/figures/breakdown.png"),
    "choosing_map.png": (
        "choose --grid latency=10us:10ms:40:log --grid bandwidth=1:100Gbit/s:40:log --set job.overlap=none "
        "--schemes topk,artopk:collective=ring,dense:algorithm=ring --out map.png",
        "map.png",
    ),
    "digits_info.png": ("show digits --out info.png", "info.png"),
}
"""The command that draws each picture, and the file that it writes."""


def draw(name: str) -> None:
    """Draw a picture.

    Raises
    ------
    CalledProcessError
        If its command fails.
    """
    command, file = PICTURES[name]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "simnet.cli", *shlex.split(command)], cwd=folder, check=True)
        shutil.copy(Path(folder, file), DOCS / "images" / name)


if __name__ == "__main__":
    for one in sys.argv[1:] or PICTURES:
        draw(one)
