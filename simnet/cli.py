"""Entry point of the `simnet` command; `simnet.verbs.app` parses the command line."""

from simnet.verbs.app import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
