"""Names of the arrays that pass between modules."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ranks: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
