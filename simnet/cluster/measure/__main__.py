"""``python -m simnet.cluster.measure`` runs ``simnet measure``, for launchers of modules such as ``torchrun -m``."""

import sys

from simnet.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "measure")
    main()
