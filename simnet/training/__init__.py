"""Simulated training jobs (`job`), sharded models (`parallel`), and an adviser that picks exchanges (`advise`)."""
