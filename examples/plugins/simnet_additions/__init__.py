"""One addition to simnet of each kind, as small as can be."""
