"""The tasks of this package, one a file."""
