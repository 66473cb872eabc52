"""Commands of `simnet.cli` in modules of their own."""
