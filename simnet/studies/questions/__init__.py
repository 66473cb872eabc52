"""Research questions: each has a scenario, a grid of varied inputs, and an answer computed from the grid's cells."""
