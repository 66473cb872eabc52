"""Runnable scenarios: each YAML file here is a job on a network, documented by its comments."""
