"""What is wrong with a setting: where it stands, which key it is, what is wrong with it, and what to write instead."""

__all__ = ["ConfigurationError", "UnfitError"]


class ConfigurationError(ValueError):
    """A setting that cannot be used. Nothing was started."""

    def __init__(self, place: str, key: str, problem: str, remedy: str) -> None:
        self.place = place
        self.key = key
        self.detail = f"{place}: {key}: {problem}" if place != key else f"{key}: {problem}"
        self.remedy = remedy
        super().__init__(f"{self.detail}; {remedy}")


class UnfitError(ValueError):
    """A value that does not fit its setting; whoever read it adds where it stands. `below` is the part that is wrong of
    a setting that has parts."""

    def __init__(self, problem: str, remedy: str, below: str = "") -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.below = below
