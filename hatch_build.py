"""Build hook: wheel and sdist have the JSON Schema of scenarios, written by the code that they hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SCHEMA = "simnet/scenarios/scenario.schema.json"


class SchemaHook(BuildHookInterface[Any]):
    """Writes the JSON Schema next to the shipped scenarios; an sdist has it already."""

    @property
    def _is_sdist(self) -> bool:
        return Path(self.root, "PKG-INFO").exists()

    def dependencies(self) -> list[str]:
        """Return what `simnet show schema` needs."""
        return [] if self._is_sdist else self.metadata.core.dependencies

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the schema before files are collected."""
        build_data["artifacts"].append(SCHEMA)
        if not self._is_sdist:
            # An isolated build finds its packages by PYTHONPATH, too.
            paths = [self.root, *filter(None, [os.environ.get("PYTHONPATH")])]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
            command = [sys.executable, "-m", "simnet.cli", "--no-plugins", "show", "schema"]
            written = subprocess.run(command, cwd=self.root, env=environment, check=True, stdout=subprocess.PIPE)
            Path(self.root, SCHEMA).write_bytes(written.stdout)
