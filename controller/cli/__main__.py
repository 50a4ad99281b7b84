"""`python -m controller.cli`: the command line without its installed script, as child processes are started."""

from controller.cli.main import main

raise SystemExit(main())
