"""``python -m simnet.measure``: ``simnet measure``, for launchers that start modules, as ``torchrun -m`` does."""

import sys

from simnet.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "measure")
    main()
