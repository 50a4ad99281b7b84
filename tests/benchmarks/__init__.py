"""The benchmarks of `camerlengo bench`: each measures one part of the library, compared with alternatives where it has
any, and can write its table in `docs/` and its plots. `controller.cli.bench` is the command.
"""
