"""Commands of simnet (`simnet run` and others): one module each, with the function that Python users call too."""
