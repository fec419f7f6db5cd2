"""The error of numbers that must be finite."""


class NonFiniteError(RuntimeError):
    """A number that must be finite is not; the message says what, where and what to do."""
