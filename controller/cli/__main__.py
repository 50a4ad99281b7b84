"""`python -m controller.cli`: the command line without its installed script, as child processes are started."""

from controller.cli.main import main

if __name__ == "__main__":  # worker processes import this module where Python does not fork them
    raise SystemExit(main())
