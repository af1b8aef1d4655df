"""A user's mistake, as opposed to a bug."""


class UserError(ValueError):
    """What the user can mend: the argument (in backticks) or file, what is wanted, what was given.

    A program prints it as one sentence; every other error is a bug and keeps its traceback.
    """
