"""An adviser of a job that runs: it learns which exchange is the fastest, and says why."""
