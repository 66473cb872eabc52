"""``simnet warm``: compile beforehand."""

from __future__ import annotations

from simnet.verbs.commands import terminal


def warm() -> None:
    """Compile what simnet runs compiled, and keep it, so that no later command waits for it.

    Others do so when they first need it, each for itself where it cannot be kept. Run it once after installation, by
    somebody who can write to where simnet is installed: then all users of the machine have it.
    """
    from simnet.studies.warming import warm as compile_all

    with terminal.progress("Compiling"):
        done = compile_all()
    if not done.functions:
        terminal.say("Everything is compiled already.")
    else:
        terminal.say(f"{len(done.functions)} functions are compiled.")
    for folder in done.folders:
        terminal.say(f"Kept in {folder}")
