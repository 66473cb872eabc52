"""Open questions: a scenario, a grid over it, and an answer computed from the cells of the grid."""
