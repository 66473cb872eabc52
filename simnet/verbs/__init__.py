"""The verbs of simnet: a module each, with the function that the command line and Python share."""
