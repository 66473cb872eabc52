"""Training steps of models that are replicated or sharded: graphs of computing and collectives, and their time."""
