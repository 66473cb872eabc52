"""The pages of the documentation: all can be reached, say what they are for, and show what is so."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from ruamel.yaml import YAML
from validating import recorded

import build_site
import fidelity_page
import house
import pictures
from commands import did
from simnet import sparsifier_models
from simnet.base.errors import InputError
from simnet.base.file_io import read_shipped_rows
from simnet.base.terms import all_terms, find_term
from simnet.scenario import json_schema, load
from simnet.scenario.choice_text import read_choice
from simnet.scenario.finding import shipped
from simnet.studies.choosing.forecast import usual_exchanges
from simnet.studies.listing import scheme_notes

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
NOTEBOOKS = {f"notebooks/{path.stem}.md" for path in DOCS.glob("notebooks/*.ipynb")}
SITE = YAML(typ="safe").load(ROOT / "mkdocs.yml")
MADE = {*build_site.PAGES, *build_site.EVIDENCE}
"""Pages that the build of the site makes, which also checks links to them."""


def prose(page):
    """Return a page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", page, flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    """Return the anchors of a page: written out, or of headings, as GitHub and Python-Markdown make them."""
    found = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    written = set(re.findall(r'<a id="([^"]+)">', page))
    return written | {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in found}


def leaves(nav):
    """Yield the pages that a part of the navigation names."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        nav = list(nav.values())
    if isinstance(nav, list):
        for one in nav:
            yield from leaves(one)


# Pages and links


def test_the_navigation_has_every_page_once():
    named = list(leaves(SITE["nav"]))
    assert len(named) == len(set(named))
    assert set(named) == {*PAGES, *MADE, *NOTEBOOKS}
    assert all((DOCS / one).exists() for one in SITE["extra_css"])


@pytest.mark.parametrize("name", ["../README.md", *PAGES])
def test_links_lead_somewhere(name):
    page = README if name == "../README.md" else PAGES[name]
    folder = (DOCS / name).parent
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
        file, _, anchor = target.partition("#")
        if file in MADE:
            continue
        path = (folder / file).resolve() if file else DOCS / name
        assert path.exists(), target
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_first_what_it_is_for(name):
    title, first = PAGES[name].split("\n\n")[:2]
    assert re.fullmatch(r"# [^\n]+", title)
    assert re.match(r"[A-Z]|simnet |`simnet[ .]", first), first
    assert re.search(r"[.:?]$", first), first


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_plain_english(name):
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "x", prose(PAGES[name]))
    assert not house.AVOIDED_PHRASES.search(text)
    lines = "\n".join(line for line in text.splitlines() if not line.startswith(("|", "#", "!", "<")))
    sentences = [
        one.split() for one in re.split(r"(?<=[.:?!])\s|\n\n|^- ", lines, flags=re.MULTILINE) if len(one.split()) > 2
    ]
    assert sum(map(len, sentences)) < 25 * len(sentences)


FENCES = [
    pytest.param(block, id=f"{name}:{number}")
    for name, page in {"README.md": README, **PAGES}.items()
    for number, block in enumerate(re.findall(r"^ *```yaml\n(.*?)^ *```$", page, flags=re.DOTALL | re.MULTILINE))
]
BASE = YAML(typ="safe").load(shipped()["base"].read_text(encoding="utf-8"))


@pytest.mark.parametrize("block", FENCES)
def test_yaml_of_a_page_is_a_scenario_or_has_fields_of_one(block, tmp_path):
    found, file = YAML(typ="safe").load(block) or {}, tmp_path / "page.yaml"
    if {"workers", "job", "exchanges"} <= found.keys():
        file.write_text(block, encoding="utf-8")
        load(file)
    elif found.keys() <= {*BASE, "policies", "other_jobs"}:
        parts = {key: {**BASE[key], **value} if key in ("job", "network") else value for key, value in found.items()}
        file.write_text(json.dumps(BASE | parts), encoding="utf-8")
        said = ""
        try:
            load(file)
        except InputError as error:  # of other fields of the base, or of a file that is not there
            said = str(error)
        assert "no such field" not in said


def words_of(picture):
    """Return the words of titles, axes and legends that a picture records, without units."""
    texts = Image.open(picture).text["Description"].split("; ")
    return {re.sub(r" \[.*?\]", "", one) for one in texts}


QUICK = {"quickstart_choices.png": "", "digits_info.png": "", "fluctuating_wan.png": " --set job.iterations=2"}
LONG = pictures.PICTURES.keys() - QUICK - {"choosing_map.png"}


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(one, marks=pytest.mark.long) for one in sorted(LONG))])
def test_a_picture_has_the_words_that_simnet_draws_today(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, file = pictures.PICTURES[name]
    did(*shlex.split(command + QUICK.get(name, " --set job.iterations=20")))
    # A short run may have another axis.
    assert words_of(DOCS / "images" / name) ^ words_of(file) <= {"iteration", "simulated time"}


def test_every_image_is_shown_and_none_is_fetched():
    shown = {one for page in [README, *PAGES.values()] for one in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page)}
    assert {Path(one).name for one in shown} == {path.name for path in DOCS.glob("images/*.*g")}
    assert not [one for one in shown if "//" in one]


# The README


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


@pytest.mark.parametrize(("page", "least"), [(README, 3), (PAGES["trust.md"], 12)])
def test_quoted_figures_are_those_of_the_recorded_validation(page, least):
    known, found = recorded.read(), 0
    for label, figure, *others in recorded.rows_of(line for line in page.splitlines() if line.startswith("| ")):
        sure = known.get(f"Sure of the faster of two: {label[0].lower()}{label[1:]}") if len(others) == 3 else None
        if row := known.get(label) or sure:
            found += 1
            assert row["ours"].startswith(figure), label
            assert others[-1] == row["from"], label
            if sure:
                assert f" of {others[0]}; Brier score {others[1]}" in row["ours"], label
            elif len(others) > 1:
                assert others[0] == row["plain"], label
    assert found >= least


def test_figures_of_jobs_and_local_costs_are_those_that_commands_print():
    (block,) = re.findall(r"```text\n(245 jobs.*?)```", PAGES["trust.md"], flags=re.DOTALL)
    assert block in did("validate", "jobs").stdout
    jobs = json.loads(did("validate", "jobs", "--json", "-q").stdout)["jobs"]
    off = [f"{100 * jobs['total'][name]:.1f} %" for name in ("median", "p90")]
    (whole, *_) = json.loads(did("validate", "local", "--json", "-q").stdout)["rows"]
    for page in (README, PAGES["trust.md"]):
        assert f"| {' / '.join(off)} | {jobs['jobs']} jobs in {jobs['settings']} settings |" in page.replace(
            "| - |", "|"
        )
        assert f" {jobs['right']} of {jobs['judged']} " in page
        assert f"| {100 * whole['median']:.1f} % / {100 * whole['p90']:.0f} % |" in page


# Examples in Python


def example(page, containing):
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", PAGES[page], flags=re.DOTALL) if containing in one]
    return block


def run(block):
    names = {"__name__": "page"}
    exec(compile(block, "page.md", "exec"), names)
    return names


def test_the_network_example_runs(capsys):
    run(example("api.md", "env.run()"))
    assert re.fullmatch(r"[\d.]+\narrived after [\d.]+ s\n", capsys.readouterr().out)


def test_a_sparsifier_in_thirty_lines_is_the_one_that_the_examples_have():
    block = example("extending.md", "class Rotating")
    assert len(block.splitlines()) <= 30
    assert block in (ROOT / "examples" / "plugins" / "rotating.py").read_text()


# The glossary


def test_the_glossary_is_sorted_and_points_to_pages():
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| \[[^\]]+\]\(([^)]+)\) \|$", PAGES["glossary.md"], flags=re.MULTILINE)
    words = [word for word, _, _ in rows]
    assert len(words) >= 35
    assert words == sorted(words, key=str.lower)
    assert all(meaning.endswith(".") and meaning.count(". ") <= 1 for _, meaning, _ in rows)
    known = {one.term: one.meaning for one in all_terms() if not one.type and one.term != "version"}
    assert {word: meaning for word, meaning, _ in rows} == known


def test_labels_of_exchanges_are_explained_by_what_to_type():
    for one in usual_exchanges(2):
        if not one.label.startswith("two-level "):
            scheme, options = read_choice(find_term(one.label).type)
            assert scheme == one.scheme
            assert options.items() <= {"collective": "ring", "selection": "star", **one.options}.items()
            assert f"| {one.label} | `{find_term(one.label).type}` |" in PAGES["choosing.md"]


# Generated pages


def test_the_page_of_the_scenario_has_every_field():
    page = build_site.PAGES["reference/scenario.md"]()
    schema = json_schema()
    for part in [schema, *schema["$defs"].values(), *schema["$defs"]["Exchange"]["anyOf"]]:
        for field in part.get("properties", {}):
            assert f"| `{field}` |" in page, field
    assert set(re.findall(r"\]\(#([\w-]+)\)", page)) <= anchors(page)


def test_the_page_on_released_code_and_the_description_of_a_scheme_have_the_same_rows():
    page, known = build_site.PAGES["evidence/schemes.md"](), set(sparsifier_models.SCHEMES)
    for table in fidelity_page.SECTIONS:
        for row in read_shipped_rows(f"data/{table}.csv"):
            names = row.pop("schemes").split()
            assert known.issuperset(names), row
            notes = " ".join(text for _, text in scheme_notes(names[0]))
            for text in row.values():
                assert fidelity_page.cell(text) in page
                assert text in ("-", row.get("source")) or text.replace("`", "") in notes, text


# The site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; warnings, dead links among them, are errors."""
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, DOCS / "site" / "build_site.py", out, "--quick"], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "site"


@pytest.mark.extras
def test_the_site_has_every_page_and_fetches_nothing(site):
    for name in leaves(SITE["nav"]):
        assert (site / name).with_suffix(".html").exists(), name
    for path in site.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?((?:https?:)?//[^\"' >]+)", page)
        fetched += re.findall(r"<link\b[^>]*\bhref=[\"']?((?:https?:)?//[^\"' >]+)", page)
        assert not fetched, path


@pytest.mark.extras
def test_the_site_shows_what_notebooks_put_out(site):
    for name in NOTEBOOKS:
        page = (site / name).with_suffix(".html").read_text(encoding="utf-8")
        assert "<img" in page
        assert "<table" in page


@pytest.mark.extras
def test_a_dead_link_fails_the_build(site, tmp_path):
    shutil.copytree(site.parent / "docs", tmp_path / "docs")
    shutil.copy(site.parent / "mkdocs.yml", tmp_path)
    (tmp_path / "docs" / "start.md").write_text("# Start\n\n[Nowhere](nowhere.md)\n")
    with pytest.raises(subprocess.CalledProcessError):
        build_site.build(tmp_path)
