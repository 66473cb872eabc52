"""Every command on a page works as it stands, in the order of the page.

A command that needs a cluster, or files that are not there, stands in a block below ``<!-- needs a cluster -->`` or
``<!-- needs files -->``: it is only read, so that its options exist. What takes long is run by ``make slow``.
"""

import re
import shlex
from pathlib import Path

import pytest

from commands import did
from simnet.verbs import app

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"(?:^<!-- needs (?P<needs>[\w ]+) -->\n+)?^ *```(?:sh|bash|console)\n(?P<lines>.*?)^ *```$", re.M | re.S
)
SHOWN = re.compile(r"^```(?:sh|bash)\n(?P<commands>(?:simnet .*\n)+)```\n\n```text\n(?P<output>.*?)^```$", re.M | re.S)
"""Commands with what they print below them; ``...`` stands for lines that are left out."""

SLOW = {
    "choose --network dgx-h100 --workers 16 --model gpt2",
    "choose fluctuating_wan",
    "choose local_steps_wan --grid strategy.period=20,100,500",
    "run incast",
    "run link_faults",
    "run local_steps_wan",
    "run local_steps_wan --set job.strategy.period=500 --out runs/rarely",
    "run local_steps_wan --set 'job.strategy={name: streaming, period: 120, fragments: 6, delay: 5}' --out runs/stream",
    "run quickstart --seeds 10",
    "run sharded_nodes",
    "run time_to_accuracy_wan",
    "run compare --grid workers=2,8",
    "run compare --schemes topk,oktopk,spardl",
    "run local_steps_wan --grid job.strategy.period=50,100,500 --grid density=0.01,0.1",
    "run quickstart --grid bandwidth=1,5,10Gbit/s --grid density=0.001:0.1:5:log",
    "run sharded_nodes --grid job.sharding.FSDP2.param_dtype=float32,bfloat16 --set job.iterations=2",
    "run resnet50_100g --grid compute.mean=20ms,50ms,155ms --grid device="
    "v100-torch1.5,v100-torch2.6,t4-torch2.6,l40s-torch2.6,rtx4090-torch2.6,a100-torch2.6,h100-torch2.6,h200-torch2.6",
    "run time_to_accuracy_wan --grid seed=0,1,2",
}
"""What takes more than some seconds of a processor."""


def commands(page):
    """Yield the commands of a page, each with its words, the file that it writes to, and whether it is only read."""
    for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
        for line in found["lines"].replace("\\\n", " ").splitlines():
            words = shlex.split(line.strip().removeprefix("$ "), comments=True)
            if words[:1] == ["simnet"]:
                words, _, target = " ".join(map(shlex.quote, words[1:])).partition(" '>' ")
                yield shlex.split(words), target, bool(found["needs"])


def pages():
    """Return the commands by page; what runs or chooses stands there once, as no other command reads its files."""
    found, met = {}, set()
    for path in [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"]:
        own = [one for one in commands(path) if shlex.join(one[0]) not in met]
        met.update(shlex.join(words) for words, _, _ in own if words[0] in ("run", "choose"))
        if own:
            found[path.name] = own
    return found


PAGES = pages()


def read(words):
    """Read a command without running it, as the command line does."""
    name, *rest = (one for one in words if one != "--no-plugins")
    app.command_of(name).parse_args(rest, exit_on_error=False, print_error=False)


def run(words, target):
    said = did(*words).stdout
    if target:
        Path(target).write_text(said, encoding="utf-8")
    return said


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with what a checkout has, and what pages write by other commands."""
    for name in ("scenarios", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "rotating.py").symlink_to(ROOT / "examples" / "plugins" / "rotating.py")
    (tmp_path / "one.csv").write_text("round,src,dst,nbytes_B\n0,0,1,10000000\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_commands_work(folder, page):
    said = set()
    for words, target, unread in PAGES[page]:
        if unread:
            read(words)
        elif shlex.join(words) not in SLOW:
            said |= {line.strip() for line in run(words, target).splitlines()}
    for found in SHOWN.finditer((ROOT / ("" if page == "README.md" else "docs") / page).read_text("utf-8")):
        assert {line.strip() for line in found["output"].splitlines()} <= said | {"..."}, found["commands"]


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(SLOW))
def test_long_commands_work(folder, command):
    run(shlex.split(command), None)


def test_pages_have_the_commands_that_are_treated_apart():
    assert {shlex.join(words) for own in PAGES.values() for words, _, _ in own} >= SLOW
