"""`python -m sequester`: the command line."""

from sequester.cli.main import main

if __name__ == "__main__":
    main()
