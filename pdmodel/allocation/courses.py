"""One lane, several requests: where each request's sends are best over, program E for each course that is tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pdmodel.allocation.course import Course, sends, shortest_first
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.allocation.solution import Solution
from pdmodel.errors import SolverError

MOST_VARIABLES = 20_000
"""What all programs of a search may have together; the first few are solved anyway, up to three times as much."""
LEAST_SOLVES, MOST_SOLVES = 4, 60
GAIN = 1e-9
"""A course that saves less than this share saves nothing."""


def best_course(data: AllocationData, courses: Sequence[Course]) -> Solution:
    """The best schedule found by a search over courses that begins with given ones.

    One request at a time its place is moved back and forth, by steps that double while that helps and are halved where
    it does not, and then right to the end of its prefill and into the tail; neighbours in the tail change places. That
    is done until nothing helps or too many programs were solved. In the tail requests are served in order of
    `shortest_first` to begin with, which is best where one port holds up all of them. Courses under which memory and
    leases suffice come before all others.

    Parameters
    ----------
    data: a record with one lane whose requests follow each other without a pause.
    courses: where to begin, the most promising first; ``done`` beyond the last phase is the tail.

    Returns
    -------
    Of the solutions that were looked at, the one of least objective.

    Raises
    ------
    As `solve_elastic`, where no course has an optimum.

    """
    count, order = len(data.lanes[0].phases), tuple(shortest_first(data, range(len(data.requests))))
    search = _Search(data, courses[0].begun)
    states = [_State(tuple(min(place, count) for place in course.done), order) for course in courses]
    best = search.look(states[0])
    for state in states[1:]:
        best = search.better(best, state)
    before = None
    while before != best:
        before = best
        for q, request in enumerate(data.requests):
            if request.last_phase + 1 < count and sends(data, request):
                best = search.moved(best, q)
        for here in range(len(order) - 1):
            swapped = list(best.order)
            swapped[here], swapped[here + 1] = swapped[here + 1], swapped[here]
            best = search.better(best, _State(best.done, tuple(swapped)))
    course = search.course(best)
    if course in search.failed:
        raise search.failed[course]
    return search.found[course]


@dataclass(frozen=True, slots=True)
class _State:
    """Places of the requests, the number of phases for all in the tail, and the order in which those are served."""

    done: tuple[int, ...]
    order: tuple[int, ...]


@dataclass
class _Search:
    data: AllocationData
    begun: tuple[int, ...]
    found: dict[Course, Solution] = field(default_factory=dict)
    failed: dict[Course, SolverError] = field(default_factory=dict)
    variables: int = 0

    def course(self, state: _State) -> Course:
        """Requests in the tail get parts of their own."""
        count, done = len(self.data.lanes[0].phases), list(state.done)
        waiting = [q for q in state.order if done[q] >= count and sends(self.data, self.data.requests[q])]
        for part, q in enumerate(waiting):
            done[q] = count + part
        return Course(tuple(done), self.begun)

    def cost(self, state: _State) -> tuple[bool, float]:
        """Whether a limit is broken, and the objective; without an optimum nothing is worse."""
        solution = self.found.get(self.course(state))
        if solution is None:
            return True, math.inf
        excess = (solution.memory_excess_bytes, solution.lease_excess_s)
        return any(one is not None and bool(one.any()) for one in excess), solution.objective

    @property
    def tired(self) -> bool:
        solves = len(self.found) + len(self.failed)
        most = MOST_VARIABLES if solves >= LEAST_SOLVES else 3 * MOST_VARIABLES
        return solves >= MOST_SOLVES or self.variables >= most

    def look(self, state: _State) -> _State:
        """Solve for a state."""
        course = self.course(state)
        if not self.knows(course):
            try:
                self.found[course] = solve_elastic(self.data, course=course)
            except SolverError as error:
                self.failed[course] = error
            else:
                self.variables += self.found[course].variables
        return state

    def knows(self, course: Course) -> bool:
        """Whether a course has been looked at."""
        return course in self.found or course in self.failed

    def better(self, best: _State, other: _State) -> _State:
        """The other state if it is known, or may still be looked at, and costs less."""
        if not self.knows(self.course(other)) and self.tired:
            return best
        (broken, cost), (breaks, least) = self.cost(self.look(other)), self.cost(best)
        return other if (broken, cost) < (breaks, least * (1 - GAIN)) else best

    def moved(self, best: _State, q: int) -> _State:
        """The best place of one request."""
        least, most = self.data.requests[q].last_phase + 1, len(self.data.lanes[0].phases)
        for way in (-1, 1):
            step = 1
            while step:
                place = min(max(best.done[q] + way * step, least), most)
                other = self.better(best, _State(_with(best.done, q, place), best.order))
                step = step * 2 if other is not best else step // 2
                best = other
        for place in (least, most):
            best = self.better(best, _State(_with(best.done, q, place), best.order))
        return best


def _with(done: Sequence[int], q: int, place: int) -> tuple[int, ...]:
    return (*done[:q], place, *done[q + 1 :])
