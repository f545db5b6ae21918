"""``python -m windrow``: the command line."""

from windrow._cli import main

if __name__ == "__main__":
    main()
