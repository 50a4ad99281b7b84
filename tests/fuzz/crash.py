"""What a target raises when something broke that should have been refused."""


class Crash(AssertionError):
    """Something broke that should have been refused."""
