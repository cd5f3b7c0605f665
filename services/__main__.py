"""`afterimage`: the command line and the all-in-one process."""

from services.cli.app import main

if __name__ == "__main__":
    main()
