"""Stop patterns: regular expressions matched one character at a time, in time linear in the text.

Python's `re` backtracks, so one request could hold the engine for hours, and it can't say whether the text so far may
still become a match, which the hold-back needs. So the syntax is parsed by the standard library and run here as a set
of states (Thompson): per character at most MAX_STATES steps, whatever the pattern.

Taken: literals, classes, escapes such as \\d \\w \\s, `.`, groups, alternation, repeats, `^` or \\A (the start of the
output), the flags a, i, s and x. Lazy and greedy repeats are the same here, because a stop is the match that
*completes* earliest, and of those that end there the one that starts leftmost. `$` or \\Z at a pattern's end is where
the text ends so far, so it is always true there. Refused, with the reason: `$` elsewhere, lookaround, back-references,
\\b, atomic groups, possessive repeats, patterns that match the empty text or need more states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from re import _compiler as sre_compiler  # type: ignore[attr-defined]
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as sre_parser  # type: ignore[attr-defined]
from typing import Any

from msgspec import Struct, field

from zerokl.errors import InvalidRequest

MAX_STATES = 1000
MAX_SOURCE_CHARS = 1000

Test = Callable[[str], bool]


class State(Struct):
    """Either takes one character that passes `test`, or takes none and goes to all its targets."""

    targets: list[int]
    test: Test | None = None
    at_start: bool = False
    """Passable only before the first character of the output."""


class Pattern(Struct, frozen=True):
    """A compiled stop pattern; ACCEPT is state 0."""

    source: str
    states: Sequence[State]
    entry: int
    closures: dict[tuple[int, bool], tuple[int, ...]] = field(default_factory=dict)
    """What is reached without taking a character: filled as it is needed."""

    @classmethod
    def compiled(cls, source: str) -> Pattern:
        """Raises InvalidRequest for what isn't a pattern, or one of those refused."""
        if len(source) > MAX_SOURCE_CHARS:
            raise refused(source, f"it has {len(source)} characters, at most {MAX_SOURCE_CHARS} are taken")
        try:
            parsed = sre_parser.parse(source)
            builder = Builder(source, parsed.state)
            entry = builder.sequence(parsed, ACCEPT, parsed.state.flags)
        except (re.error, OverflowError, RecursionError) as error:
            raise refused(source, str(error)) from error
        pattern = cls(source, builder.states, entry)
        if ACCEPT in pattern.closure(entry, True):
            raise refused(source, "it matches the empty text")
        return pattern

    def closure(self, state: int, at_start: bool) -> tuple[int, ...]:
        """The states that take a character, and ACCEPT, reachable from here without taking any."""
        known = self.closures.get((state, at_start))
        if known is None:
            known = self.closures[state, at_start] = tuple(self._reach(state, at_start))
        return known

    def _reach(self, entry: int, at_start: bool) -> Iterable[int]:
        seen, stack = {entry}, [entry]
        while stack:
            number = stack.pop()
            state = self.states[number]
            if state.test is not None or number == ACCEPT:
                yield number
            elif at_start or not state.at_start:
                fresh = [target for target in state.targets if target not in seen]
                seen.update(fresh)
                stack.extend(fresh)


ACCEPT = 0


class PatternMatcher:
    """Runs one pattern over one text."""

    __slots__ = ("_pattern", "_position", "_threads")

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._position = 0
        self._threads: dict[int, int] = {}
        """State to the leftmost start among the matches that wait in it."""

    @property
    def held(self) -> int:
        """How many of the last characters may still be part of a match."""
        return self._position - min(self._threads.values(), default=self._position)

    def push(self, char: str) -> int:
        """Take a character; the length of the match that it completes, or 0."""
        pattern, position = self._pattern, self._position
        threads = dict(self._threads)
        for number in pattern.closure(pattern.entry, position == 0):
            threads.setdefault(number, position)
        arrived: dict[int, int] = {}
        for number, start in threads.items():
            state = pattern.states[number]
            if state.test is not None and state.test(char):
                for target in pattern.closure(state.targets[0], False):
                    arrived[target] = min(start, arrived.get(target, start))
        self._position = position + 1
        matched_start = arrived.pop(ACCEPT, None)
        self._threads = arrived
        return 0 if matched_start is None else position + 1 - matched_start


class Builder:
    """Turns the parsed syntax into states, from the end backwards: each part is built in front of its target."""

    def __init__(self, source: str, syntax: Any) -> None:
        self.source = source
        self.syntax = syntax
        self.states = [State([])]

    def sequence(self, items: Any, target: int, flags: int) -> int:
        for code, argument in reversed(list(items)):
            target = self.item(code, argument, target, flags)
        return target

    def item(self, code: Any, argument: Any, target: int, flags: int) -> int:
        """The entry of this part when it is followed by `target`."""
        if code in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            return self.add(State([target], self.character_test(code, argument, flags)))
        if code is sre.SUBPATTERN:
            _, added, removed, inner = argument
            return self.sequence(inner, target, (flags | added) & ~removed)
        if code is sre.BRANCH:
            return self.add(State([self.sequence(branch, target, flags) for branch in argument[1]]))
        if code in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, inner = argument
            return self.repeat(least, most, inner, target, flags)
        if code is sre.AT and argument in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING) and not flags & re.MULTILINE:
            return self.add(State([target], at_start=True))
        if code is sre.AT and argument in (sre.AT_END, sre.AT_END_STRING) and target == ACCEPT:
            return target
        raise refused(self.source, f"{str(code).lower()} is not taken")

    def repeat(self, least: int, most: int, inner: Any, target: int, flags: int) -> int:
        if most is sre.MAXREPEAT:
            loop = self.add(State([target]))
            self.states[loop].targets.append(self.sequence(inner, loop, flags))
            target = loop
        else:
            end = target
            for _ in range(most - least):
                target = self.add(State([end, self.sequence(inner, target, flags)]))
        for _ in range(least):
            entry = self.sequence(inner, target, flags)
            if entry == target:  # nothing inside, and the count may be in the billions
                break
            target = entry
        return target

    def character_test(self, code: Any, argument: Any, flags: int) -> Test:
        """One character against one class is what `re` does well: it keeps its own meaning of classes and case."""
        one = sre_compiler.compile(sre_parser.SubPattern(self.syntax, [(code, argument)]), flags)
        return lambda char: one.fullmatch(char) is not None

    def add(self, state: State) -> int:
        if len(self.states) >= MAX_STATES:
            raise refused(self.source, f"it needs more than {MAX_STATES} states")
        self.states.append(state)
        return len(self.states) - 1


def refused(source: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"stop_regex {source!r}: {why}", param="stop_regex")
