"""Training steps of replicated or sharded models: graphs of compute and collectives, and their timing."""
