"""What the README shows works as it stands."""

import re
from pathlib import Path

import numpy as np
import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def run(block):
    names = {"__name__": "readme"}
    exec(compile(block, "README.md", "exec"), names)
    return names


def test_the_network_example_runs(capsys):
    run(BLOCKS[0])
    assert re.fullmatch(r"[\d.]+\narrived after [\d.]+ s\n", capsys.readouterr().out)


def test_a_sparsifier_in_thirty_lines_keeps_all_gradient_mass():
    (block,) = (one for one in BLOCKS if "class Rotating" in one)
    assert len(block.splitlines()) <= 30
    assert block in (Path(__file__).parents[1] / "examples" / "plugins" / "rotating.py").read_text()
    model = run(block)["Rotating"](workers=4, parameters=50, density=0.1)
    entered, applied = np.zeros(50), np.zeros(50)
    for iteration in range(12):
        gradients = np.random.default_rng(iteration).standard_normal((4, 50)).astype(np.float32)
        exchange = model.exchange(gradients)
        entered += gradients.sum(axis=0, dtype=np.float64)
        applied += 4.0 * exchange.update
    assert applied + model.residual.sum(axis=0) == pytest.approx(entered, abs=1e-4)
    assert exchange.stats["density"] == pytest.approx(0.1)


def test_every_file_it_points_to_exists():
    root = Path(__file__).parents[1]
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (root / target).exists(), target
