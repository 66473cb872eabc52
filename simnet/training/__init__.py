"""The simulated training job (`job`), sharded models (`parallel`), and the adviser (`advise`)."""
