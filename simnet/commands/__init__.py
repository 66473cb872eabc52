"""Commands of `simnet.cli`, a module for each group; `common` has what they share."""
