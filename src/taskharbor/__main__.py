"""`python -m taskharbor` is `taskharbor`."""

from taskharbor.cli import main

if __name__ == "__main__":
    main()
