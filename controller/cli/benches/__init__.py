"""The benches of `camerlengo bench`: each measures one thing, beside its peers where it has any, and can write its page
of `docs/` and its plots. `controller.cli.bench` is the command; nothing else imports from here but tests."""
