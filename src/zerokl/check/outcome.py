"""How a case ends. A case passes only if it compared values and its event was seen to happen."""

from __future__ import annotations

from enum import StrEnum

from zerokl.errors import ZeroklError


class Status(StrEnum):
    EQUAL = "equal"
    DIFFERENT = "different"
    COULD_NOT_RUN = "could not run"
    NOT_POSSIBLE = "not possible"
    """The target has no way to ask for it; listed, never silently skipped."""


EXIT_CODES = {Status.EQUAL: 0, Status.DIFFERENT: 1, Status.COULD_NOT_RUN: 2, Status.NOT_POSSIBLE: 2}


class CouldNotRun(ZeroklError):
    """The case can't give a verdict: the server failed, or answered something that isn't an answer."""


class NotPossible(ZeroklError):
    """The server, as it was started, can't be brought to the case's event."""


class Vacuous(CouldNotRun):
    """Everything was answered, but the event that the case is about did not happen."""


class ServerGone(CouldNotRun):
    """Nothing listens any more, so no later case can run either."""


class BudgetSpent(CouldNotRun):
    """The time or the number of requests that the user allowed is used up."""
