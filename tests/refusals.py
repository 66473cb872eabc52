"""What a command says that was refused."""

from typer.testing import Result


def refused(result: Result) -> str:
    """Return the one message of a command that was refused."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("error: ") == 1
    return result.stderr
