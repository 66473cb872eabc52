"""simnet: what a sparsified gradient exchange costs on a network whose links change while the job runs."""

__version__ = "0.1.0"
