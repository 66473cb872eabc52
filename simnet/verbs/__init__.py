"""Commands of simnet, such as `simnet run`. Each module has one command, as a function that Python users call too."""
