"""Draw the pictures of the gallery anew: run the command of each, and take the file that the page names.

    python docs/site/pictures.py              # all of them, in some minutes
    python docs/site/pictures.py incast_breakdown.png

The page is the only list of them.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
PICTURE = re.compile(r"\(images/(\S+)\)\n\n```sh\nsimnet (.+)\n```\n\nIn `(.+)`\.")


def pictures() -> dict[str, tuple[list[str], str]]:
    """Return the pictures by name: the words of the command that draws each, and the file that it writes."""
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    return {name: (shlex.split(command), file) for name, command, file in PICTURE.findall(page)}


def draw(name: str) -> None:
    """Draw a picture.

    Raises
    ------
    CalledProcessError
        If its command fails.
    """
    words, file = pictures()[name]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "simnet.cli", *words], cwd=folder, check=True)
        shutil.copy(Path(folder, file), DOCS / "images" / name)


if __name__ == "__main__":
    for one in sys.argv[1:] or pictures():
        draw(one)
