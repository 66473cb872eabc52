"""The console script; `simnet.verbs.app` reads the line."""

from simnet.verbs.app import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
