"""Commands of simnet as users type them: those that end well, those that are refused, and what they leave behind."""

from pathlib import Path

from typer.testing import CliRunner, Result

from simnet import cli


def invoke(*arguments: object) -> Result:
    """Return what came of a command."""
    return CliRunner().invoke(cli.app, [str(one) for one in arguments])


def did(*arguments: object) -> Result:
    """Return what came of a command that ended well."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refused(*arguments: object) -> str:
    """Return the one message of a command that was refused."""
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("error: ") == 1
    return result.stderr


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
