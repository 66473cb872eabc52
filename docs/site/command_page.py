"""The page of the command line, made of what verbs say of themselves."""

from __future__ import annotations

from collections.abc import Iterator

from cells import cell
from simnet.verbs import app


def page() -> str:
    """Return the page: a section for each verb, with its options."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Commands\n\nWhat each verb does and takes, as `simnet VERB --help` says it. Before a verb, `--no-plugins`"
    yield "runs no code of others; `--version` says the version.\n"
    for name, verb in app.all_verbs().items():
        options = app.verb_options(name)
        words = [one.names for one in options if one.names.isupper()]
        yield f"\n## simnet {name}\n\n{cell(verb.summary)}\n"
        yield f"```text\nsimnet {' '.join([name, *words])} [FLAGS]\n```\n\n| Takes | Meaning |\n|---|---|"
        yield from (f"| {cell(f'`{one.names}`')} | {cell(one.help)} |" for one in options)
        yield f"\n```sh\nsimnet {name} {verb.example}\n```"
