"""Code for real clusters: communication hooks for PyTorch (`hooks`) and timing of collectives (`measure`)."""
