"""What a reader raises: an error the user can act on."""


class TraceError(ValueError):
    """A trace that cannot be used; the message names file, line, column, value and the remedy."""
