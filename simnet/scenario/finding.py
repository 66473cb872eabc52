"""Search for scenario files, including shipped scenarios, and references to scenarios for other processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simnet.base.errors import InputError, suggest_names

if TYPE_CHECKING:
    from simnet.scenario.scenario import Scenario


def shipped() -> dict[str, Path]:
    """Return the paths of the shipped scenarios by name."""
    # Loaded here, as a file that is named needs none of it.
    from importlib.resources import files

    folder = Path(str(files("simnet.scenarios")))
    return {path.stem: path for path in sorted(folder.rglob("*.yaml"))}


# What is given in place of a scenario, and how it is given.
_OTHERS = {
    ".npz": "is an archive of gradients and no scenario; --gradients {0} takes it",
    ".npy": "is an array and no scenario; gradients are an archive: numpy.savez('mine.npz', **{{'000020/fc1': array}})",
    "trace": "is a trace and no scenario; --gradients {0} takes it",
    ".log": "is a log and no scenario; simnet calibrate {0} -o fabric.yaml reads it",
    ".py": "is code and no scenario; --schemes {0}:CLASS takes a scheme in it",
}


def find(path: str | Path) -> Path:
    """Return the path of a scenario file, given a path or a shipped scenario's name; InputError if neither exists."""
    file, known = Path(path), shipped()
    if file.is_file() or str(path) not in known:
        if not file.exists() and len(file.parts) == 1 and not file.suffix:
            # Loaded here, as who asks for help needs no costs.
            from simnet.cost_models.costs.models import model_names

            there = "there is no such file, and no scenario of that name comes with simnet; "
            model = f"as a model it is --model {path}. " if str(path) in model_names() else ""
            raise InputError(f"{there}{model}{suggest_names(str(path), known)}", file=str(path))
        if not file.exists() and file.stem in known:
            raise InputError(f"there is no such file; the scenario {file.stem!r} comes with simnet", file=str(path))
        kind = "trace" if (file / "trace.json").is_file() else file.suffix.partition(":")[0]
        if kind in _OTHERS:
            raise InputError(_OTHERS[kind].format(str(path).partition(":")[0]), file=str(path))
        return file
    return known[str(path)]


@dataclass(frozen=True)
class Source:
    """How another process loads a scenario: path, overrides, seed, policies to keep, and a number added to the seed."""

    path: str | Path
    overrides: Sequence[str] = ()
    seed: int | None = None
    policies: Sequence[str] | None = None
    later: int = 0

    def load(self) -> Scenario:
        """Load the scenario with only the given `policies`, if not None, and with `later` added to its seed."""
        # Whether there is a file is known before all that a scenario may hold is loaded.
        path = find(self.path)
        from simnet.scenario.scenario import load

        loaded = load(path, self.overrides, self.seed)
        loaded = loaded if self.policies is None else loaded.only(self.policies)
        return loaded.with_seed(loaded.config.seed + self.later)
