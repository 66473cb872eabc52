"""Look-up of scenario files, including those that ship with simnet."""

from __future__ import annotations

from pathlib import Path

from simnet.base.errors import InputError, suggest_names
from simnet.cost_models.costs.models import model_names


def shipped() -> dict[str, Path]:
    """Return the shipped scenarios by name."""
    # Loaded here, as a file that is named needs none of it.
    from importlib.resources import files

    folder = Path(str(files("simnet.scenarios")))
    return {path.stem: path for path in sorted(folder.rglob("*.yaml"))}


def find(path: str | Path) -> Path:
    """Return the file of a scenario: the path itself, or the shipped one of that name. InputError: there is neither."""
    file, known = Path(path), shipped()
    if file.is_file() or str(path) not in known:
        if not file.exists() and len(file.parts) == 1 and not file.suffix:
            there = "there is no such file, and no scenario of that name comes with simnet; "
            model = f"as a model it is --model {path}. " if str(path) in model_names() else ""
            raise InputError(f"{there}{model}{suggest_names(str(path), known)}", file=str(path))
        return file
    return known[str(path)]
