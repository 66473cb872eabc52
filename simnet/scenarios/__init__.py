"""Runnable scenarios: each YAML file here, and in `papers`, is a job on a network, documented by its comments."""
