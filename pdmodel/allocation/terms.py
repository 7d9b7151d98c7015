"""Terms of the two programs: one class per constraint or penalty, each with its equation.

A term is built from a form (arrays, dimensionless) and the program's variables; a program only lists its terms.
Variables are cvxpy expressions, typed `Any` because cvxpy has no types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pdmodel.allocation.elastic import ElasticForm
from pdmodel.allocation.network import Network
from pdmodel.allocation.residual import ResidualForm
from pdmodel.timeline.phases import FloatArray, IntArray

#: Scaled bytes that count as none when a port is looked at for a kink.
KINK = 1e-7


class Term(ABC):
    """A part of a program: constraints by name, and what it adds to the cost (nothing unless it is a penalty)."""

    equation: ClassVar[str]

    @abstractmethod
    def constraints(self) -> Mapping[str, Any]:
        """Constraints by name."""

    def cost(self) -> Any:
        """Contribution to the objective, or None."""
        return None

    def worth(self, duals: Mapping[str, FloatArray]) -> FloatArray | float:
        """What one more unit of capacity on each port (P',) would save through this term, at the optimum."""
        return 0.0


@dataclass(frozen=True, slots=True)
class Entries:
    """Columns of ``sent``: bytes y of a route (place in the network) in a slot."""

    route: IntArray
    slot: IntArray

    def table(self, sent: FloatArray, routes: int, slots: int) -> FloatArray:
        """The columns' values as an array (R', S)."""
        out = np.zeros((routes, slots))
        out[self.route, self.slot] = np.clip(sent, 0.0, None)
        return out


def open_entries(lower: FloatArray, upper: FloatArray, step: IntArray, route_flow: IntArray) -> Entries:
    """Route and slot of every variable that may be positive: after the first release, before the last byte is due."""
    done = np.concatenate([np.zeros((len(lower), 1)), lower[:, :-1]], axis=1) >= upper[:, -1:]
    free = (upper > 0) & ~done
    route, slot = np.nonzero(free[route_flow][:, step])
    return Entries(route, slot)


def state_bounds(lower: FloatArray, upper: FloatArray) -> list[FloatArray]:
    """Bounds of the state, flat: only those that the order c_k <= c_{k+1} does not imply.

    Implied bounds cost time, and give bytes prices that nothing asks for.
    """
    lower_before = np.concatenate([np.zeros((len(lower), 1)), lower[:, :-1]], axis=1)
    upper_after = np.concatenate([upper[:, 1:], np.full((len(upper), 1), np.inf)], axis=1)
    low = np.where(lower > lower_before, lower, -np.inf)
    high = np.where(upper < upper_after, upper, np.inf)
    return [low.reshape(-1), high.reshape(-1)]


@dataclass(frozen=True)
class CumulativeBytes(Term):
    """Bytes sent so far are a state, bounded by what is released and by what must be there."""

    equation = r"c_{f,k} = c_{f,k-1} + \sum_{p \in f}\sum_{s \in k} y_{f,p,s}, \qquad D_{f,k} \le c_{f,k} \le A_{f,k}"
    net: Network
    entries: Entries
    step: IntArray
    steps: int
    sent: Any
    state: Any

    def constraints(self) -> Mapping[str, Any]:
        """One balance per flow and step; the bounds sit on the state variable itself."""
        import scipy.sparse as sp

        flows = len(self.net.flows)
        row = self.net.route_flow[self.entries.route] * self.steps + self.step[self.entries.slot]
        column = np.arange(len(row))
        members = self.net.per_flow[self.entries.route]
        arrivals = sp.csr_array((members, (row, column)), shape=(flows * self.steps, len(row)))
        place = np.arange(flows * self.steps)
        later = place[place % self.steps > 0]
        value = np.concatenate([np.ones(len(place)), -np.ones(len(later))])
        coordinates = (np.concatenate([place, later]), np.concatenate([place, later - 1]))
        difference = sp.csr_array((value, coordinates), shape=(len(place), len(place)))
        return {"cumulative_bytes": arrivals @ self.sent == difference @ self.state}


@dataclass(frozen=True)
class StretchedPort(Term):
    """Critical bytes and KV of a slot fit into the port for as long as the slot lasts."""

    equation = r"b_{e,s} + \sum_f \sum_p m_{p,e} y_{f,p,s} \le \hat C_{e,s} T_s - \sum_D B_{D,e} (T_s - \delta_{D,s})"
    form: ElasticForm
    rows: IntArray
    matrix: Any
    stretched: IntArray
    sent: Any
    stretch: Any
    decode_loss: Any

    def constraints(self) -> Mapping[str, Any]:
        """One row per slot and port that KV may use, in terms of the stretch X = T - tau."""
        import scipy.sparse as sp

        slot, port = self.rows.T
        growth = self._growth
        column = np.full(len(self.form.tau_s), -1)
        column[self.stretched] = np.arange(len(self.stretched))
        can = column[slot] >= 0
        wider = sp.csr_array(
            (growth[can], (np.flatnonzero(can), column[slot[can]])), shape=(len(slot), len(self.stretched))
        )
        used = self.matrix @ self.sent - wider @ self.stretch
        if self.decode_loss is not None:
            used = used - decode_relief(self.form.decode, slot, port, len(self.form.tau_s)) @ self.decode_loss
        return {"port": used <= self.room}

    @property
    def _growth(self) -> FloatArray:
        slot, port = self.rows.T
        return np.asarray(self.form.usable[slot, port] - self.form.decode.sum(axis=0)[port])

    @property
    def room(self) -> FloatArray:
        """Bytes that a row holds without stretch or loss."""
        slot, port = self.rows.T
        return np.asarray(self._growth * self.form.tau_s[slot] - self.form.critical[slot, port])

    def worth(self, duals: Mapping[str, FloatArray]) -> FloatArray:
        """Capacity widens a row by the slot's length."""
        slot, port = self.rows.T
        length = self.form.tau_s.copy()
        length[self.stretched] += self.stretch.value
        out = np.zeros(self.form.usable.shape[1])
        np.add.at(out, port, duals["port"] * length[slot] * self.form.widens[slot, port])
        return out


def saving_duals(
    bytes_term: CumulativeBytes, matrix: Any, room: FloatArray, duals: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """Duals with those of full ports that KV leaves alone made as small as optimality allows.

    A port that critical traffic fills to the brim and that no KV crosses is a kink: taking capacity away costs more
    than giving some saves. Its dual may be anything between; what is asked for is what more capacity saves. Lowering
    the duals of such rows of a slot together keeps them optimal as long as no route would gain by moving bytes there.
    ``matrix`` (rows, entries), ``room`` (rows,) are those of the port term.
    """
    port, entries = duals["port"], bytes_term.entries
    idle = (np.abs(room) <= KINK) & (matrix @ np.abs(bytes_term.sent.value) <= KINK)
    row = bytes_term.net.route_flow[entries.route] * bytes_term.steps + bytes_term.step[entries.slot]
    gain = -duals["cumulative_bytes"][row] * bytes_term.net.per_flow[entries.route]
    firm, soft = matrix.T @ np.where(idle, 0.0, port), matrix.T @ np.where(idle, port, 0.0)
    needed = np.divide(gain - firm, soft, out=np.zeros_like(soft), where=soft > 0)
    kept = np.zeros(int(entries.slot.max(initial=0)) + 1)
    np.maximum.at(kept, entries.slot, np.clip(needed, 0.0, 1.0))
    slot_of_row = np.zeros(len(port), dtype=np.int64)
    pairs = matrix.tocoo()
    slot_of_row[pairs.coords[0]] = entries.slot[pairs.coords[1]]
    return {**duals, "port": np.where(idle, port * kept[slot_of_row], port)}


def decode_relief(decode: FloatArray, slot: IntArray, port: IntArray, slots: int) -> Any:
    """Bytes that a port row gains per second of loss of each decode lane: columns are (lane, slot)."""
    import scipy.sparse as sp

    lane = np.repeat(np.arange(len(decode)), len(slot))
    row = np.tile(np.arange(len(slot)), len(decode))
    value = decode[:, port].reshape(-1)
    kept = value > 0
    column = lane * slots + np.tile(slot, len(decode))
    return sp.csr_array((value[kept], (row[kept], column[kept])), shape=(len(slot), len(decode) * slots))


@dataclass(frozen=True)
class StretchCost(Term):
    """What stretching phases, waiting at gates and the tail cost."""

    equation = r"\sum_i \pi_i (T_i - \tau_i + W_i) + \lambda \cdot \mathrm{tail}"
    form: ElasticForm
    stretched: IntArray
    stretch: Any

    def constraints(self) -> Mapping[str, Any]:
        """None: the stretch is non-negative by declaration."""
        return {}

    def cost(self) -> Any:
        """Price times stretch."""
        return self.form.price[self.stretched] @ self.stretch


@dataclass(frozen=True)
class DecodeLoss(Term):
    """A decode lane loses at most all of its time, and its loss is charged.

    The overdraft on a port is o_{D,e} = B_{D,e} delta_D: more overdraft only widens the port, so the largest that a
    loss of delta_D allows is taken.
    """

    equation = r"0 \le \delta_{D,s} \le T_s, \qquad \text{cost } \pi_D \sum_s \delta_{D,s}"
    length: FloatArray
    price: FloatArray
    stretched: IntArray
    stretch: Any
    decode_loss: Any

    def constraints(self) -> Mapping[str, Any]:
        """One row per decode lane and slot; ``stretch`` is None on a fixed clock."""
        import scipy.sparse as sp

        lanes, slots = len(self.price), len(self.length)
        base = np.tile(self.length, lanes)
        if self.stretch is None:
            return {"decode_loss": self.decode_loss <= base}
        row = (np.arange(lanes)[:, None] * slots + self.stretched).reshape(-1)
        column = np.tile(np.arange(len(self.stretched)), lanes)
        longer = sp.csr_array((np.ones(len(row)), (row, column)), shape=(lanes * slots, len(self.stretched)))
        return {"decode_loss": self.decode_loss - longer @ self.stretch <= base}

    def cost(self) -> Any:
        """Price times loss."""
        return np.repeat(self.price, len(self.length)) @ self.decode_loss


@dataclass(frozen=True)
class ResidualPort(Term):
    """KV of an interval fits into the residual and what it takes from critical traffic."""

    equation = (
        r"\sum_f \sum_p m_{p,e} y_{f,p,j} \le S_{e,j} \Delta_j + o_{e,j} + \sum_D B_{D,e} \delta_{D,j},"
        r"\qquad 0 \le o_{e,j} \le b_{e,j}"
    )
    form: ResidualForm
    rows: IntArray
    matrix: Any
    overdrawn: IntArray
    sent: Any
    overdraft: Any
    decode_loss: Any

    def constraints(self) -> Mapping[str, Any]:
        """One row per interval and port that KV may use; ``overdrawn`` are the rows that have an overdraft."""
        import scipy.sparse as sp

        slot, port = self.rows.T
        used = self.matrix @ self.sent
        if self.overdraft is not None:
            column = np.arange(len(self.overdrawn))
            pick = sp.csr_array((np.ones(len(column)), (self.overdrawn, column)), shape=(len(slot), len(column)))
            used = used - pick @ self.overdraft
        if self.decode_loss is not None:
            used = used - decode_relief(self.form.decode, slot, port, len(self.form.length_s)) @ self.decode_loss
        return {"port": used <= self.room}

    @property
    def room(self) -> FloatArray:
        """Bytes that a row holds without overdraft or loss."""
        slot, port = self.rows.T
        return np.asarray(self.form.room[slot, port])

    def worth(self, duals: Mapping[str, FloatArray]) -> FloatArray:
        """Capacity widens a row by the interval's length; the clock itself is taken as given."""
        slot, port = self.rows.T
        out = np.zeros(self.form.room.shape[1])
        np.add.at(out, port, duals["port"] * self.form.length_s[slot] * self.form.widens[slot, port])
        return out


@dataclass(frozen=True)
class CriticalDelay(Term):
    """Overdraft on a port delays every phase that runs on it: a fair port slows all of them alike."""

    equation = (
        r"\delta_i \ge \sum_{j \in i} o_{e,j} / \hat C_{e,j} \text{ on every port } e \text{ of phase } i,"
        r"\qquad \text{cost } \sum_i \pi_i \delta_i"
    )
    form: ResidualForm
    rows: IntArray
    overdrawn: IntArray
    overdraft: Any
    delay: Any
    delayed: IntArray

    def _pairs(self) -> tuple[IntArray, IntArray, IntArray]:
        """Row, place of the overdraft, and delayed phase, of each pair that meets on a port the phase uses."""
        import scipy.sparse as sp

        form, (slot, port) = self.form, self.rows[self.overdrawn].T
        shape = (len(form.length_s), len(form.delay_price))
        running = sp.csr_array((np.ones(len(form.delay_phase)), (form.delay_slot, form.delay_phase)), shape=shape)
        over, phase = running[slot].tocoo().coords
        kept = form.uses[phase, port[over]]
        over, phase = over[kept], phase[kept]
        row = np.unique(phase.astype(np.int64) * form.room.shape[1] + port[over], return_inverse=True)[1].reshape(-1)
        return row, over, phase

    def constraints(self) -> Mapping[str, Any]:
        """One row per phase and port that has an overdraft while the phase runs."""
        import scipy.sparse as sp

        row, over, phase = self._pairs()
        slot, port = self.rows[self.overdrawn].T
        share, count = 1.0 / self.form.usable[slot, port], int(row.max(initial=-1)) + 1
        spent = sp.csr_array((share[over], (row, over)), shape=(count, len(slot)))
        place = np.full(len(self.form.delay_price), -1)
        place[self.delayed] = np.arange(len(self.delayed))
        owner = np.zeros(count, dtype=np.int64)
        owner[row] = place[phase]
        pick = sp.csr_array((np.ones(count), (np.arange(count), owner)), shape=(count, len(self.delayed)))
        return {"critical_delay": spent @ self.overdraft - pick @ self.delay <= 0}

    def cost(self) -> Any:
        """Price times delay."""
        return self.form.delay_price[self.delayed] @ self.delay

    def worth(self, duals: Mapping[str, FloatArray]) -> FloatArray:
        """An overdraft is made up for sooner on a wider port: d(o / C)/dC = -o / C^2."""
        row, over, _ = self._pairs()
        slot, port = self.rows[self.overdrawn].T
        sooner = self.overdraft.value / self.form.usable[slot, port] ** 2 * self.form.widens[slot, port]
        out = np.zeros(self.form.room.shape[1])
        np.add.at(out, port[over], duals["critical_delay"][row] * sooner[over])
        return out


@dataclass(frozen=True, slots=True)
class LatePoints:
    """Instants at which a group's lateness is a variable.

    ``group`` (W,) and ``weight`` (W,) [time]; rows pair a point with a flow of its group and the step whose state says
    what has been sent (-1: before the first), and ``due`` (rows,) is what should have been.
    """

    weight: FloatArray
    group: IntArray
    row_point: IntArray
    row_flow: IntArray
    row_step: IntArray
    due: FloatArray


def late_points(form: ResidualForm) -> LatePoints:
    """Points of lateness: a step's end, and its start where more is due than at the end of the one before."""
    groups, steps = len(form.group_price), form.due.shape[1]
    flow_late = form.due > 0
    jump = np.diff(form.due, axis=1, prepend=0.0) > 0
    any_late, any_jump = np.zeros((groups, steps), dtype=bool), np.zeros((groups, steps), dtype=bool)
    np.logical_or.at(any_late, form.group, flow_late)
    np.logical_or.at(any_jump, form.group, jump)
    end, start = np.full((groups, steps), -1), np.full((groups, steps), -1)
    end[any_late] = np.arange(any_late.sum())
    own = any_late & any_jump
    start[own] = any_late.sum() + np.arange(own.sum())
    same = any_late & ~any_jump
    start[:, 1:][same[:, 1:]] = end[:, :-1][same[:, 1:]]
    weight = np.zeros(int(any_late.sum() + own.sum()))
    group = np.zeros(len(weight), dtype=np.int64)
    half = np.broadcast_to(form.step_s / 2, (groups, steps))
    for place in (end, start):
        kept = place >= 0
        np.add.at(weight, place[kept], half[kept])
        group[place[kept]] = np.nonzero(kept)[0]
    f, k = np.nonzero(flow_late)
    at_start = own[form.group[f], k]
    return LatePoints(
        weight=weight,
        group=group,
        row_point=np.concatenate([end[form.group[f], k], start[form.group[f], k][at_start]]),
        row_flow=np.concatenate([f, f[at_start]]),
        row_step=np.concatenate([k, k[at_start] - 1]),
        due=np.concatenate([form.due[f, k], form.due[f, k][at_start]]),
    )


@dataclass(frozen=True)
class Lateness(Term):
    """A request is as late as the latest of its flows, in units of the flow's quantum."""

    equation = (
        r"w_{r,j} \ge (D_{f,j} - c_{f,j}) / q_f \text{ for each flow } f \text{ of } r,"
        r"\qquad \text{cost } \lambda_r \sum_j \Delta_j (w^{start}_{r,j} + w^{end}_{r,j}) / 2"
    )
    form: ResidualForm
    points: LatePoints
    state: Any
    late: Any

    def constraints(self) -> Mapping[str, Any]:
        """One row per flow and point: q w + c >= D."""
        import scipy.sparse as sp

        points, steps = self.points, self.form.due.shape[1]
        rows = np.arange(len(points.due))
        known = points.row_step >= 0
        column = points.row_flow[known] * steps + points.row_step[known]
        sent = sp.csr_array((np.ones(int(known.sum())), (rows[known], column)), shape=(len(rows), self.form.due.size))
        quantum = self.form.quantum[points.row_flow]
        owed = sp.csr_array((quantum, (rows, points.row_point)), shape=(len(rows), len(points.weight)))
        return {"lateness": owed @ self.late + sent @ self.state >= points.due}

    def cost(self) -> Any:
        """Price of the group times time times lateness."""
        return (self.form.group_price[self.points.group] * self.points.weight) @ self.late
