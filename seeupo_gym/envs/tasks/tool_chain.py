"""ToolChain: the support agent of a shop calls typed tools, one after another, to answer a request."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from seeupo_gym.envs.arguments import check_flag
from seeupo_gym.envs.counter_rng import integers, uniform
from seeupo_gym.envs.task import ALL_LANES, NO_ACTION, Lanes, MaskedTaskEnv, StepResult, Task, choose_level, one_hot
from seeupo_gym.envs.tasks.tool_chain_world import LEVELS, TOOLS, TYPES, paths

PARTIAL_CREDIT = 0.5
NOTHING = -1

# The reply to the last action.
NONE, OK, NEEDS_INPUT, NOT_FOUND, TIMEOUT, REFUSED = range(6)
N_STATUSES = 6

# Random streams: the first three are for the start of an episode, the last one for its transitions.
_REQUEST, _RECORDS, _OFFLINE, _TIMEOUT = range(4)


class ToolChain(Task):
    """Batched dynamics; :class:`ToolChainEnv` documents the task."""

    has_action_masks: ClassVar[bool] = True
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)

    def __init__(self, n_lanes: int = 1, level: str = "easy", flat: bool = False) -> None:
        self.level = choose_level(level, LEVELS)
        self.flat = flat = check_flag("flat", flat)
        self.max_turns = self.level.max_turns
        n_tools, n_records = self.level.n_tools, self.level.n_records
        self.submit = n_tools
        self.action_space = (
            spaces.Discrete(n_tools * n_records + 1) if flat else spaces.MultiDiscrete([n_tools + 1, n_records])
        )
        self._paths = np.array(paths(n_tools, self.level.distance))
        self._takes = np.array([tool.takes for tool in TOOLS[:n_tools]])
        n_types, n_requests = n_tools + 1, len(self._paths)
        # The types that a request needs. Column t > 0 also stands for tool t - 1, which finds type t.
        self._wanted = np.zeros((n_requests, n_types), dtype=bool)
        np.put_along_axis(self._wanted, self._paths[:, 1:], True, axis=1)
        size = n_requests + n_tools + n_types * n_records + n_records + N_STATUSES + self.max_turns
        self.observation_space = spaces.Box(0.0, 1.0, (size,), np.float32)
        super().__init__(n_lanes)
        self.requests = np.zeros(n_lanes, dtype=np.int64)
        self.online = np.ones((n_lanes, n_tools), dtype=bool)
        self.records = np.zeros((n_lanes, n_types), dtype=np.int64)
        self.known = np.zeros((n_lanes, n_types), dtype=bool)
        self.status = np.full(n_lanes, NONE)
        self.result = np.full(n_lanes, NOTHING)

    def _start(self, lanes: Lanes) -> None:
        seeds = self.task_seeds[lanes]
        n_tools, n_types = self.online.shape[1], self.known.shape[1]
        requests = integers(len(self._paths), seeds, _REQUEST)
        offline = uniform(seeds[:, None], _OFFLINE, np.arange(n_tools)) < self.level.offline
        self.requests[lanes] = requests
        self.online[lanes] = self._wanted[requests, 1:] | ~offline
        self.records[lanes] = integers(self.level.n_records, seeds[:, None], _RECORDS, np.arange(n_types))
        self.known[lanes] = self._paths[requests, :1] == np.arange(n_types)
        self.status[lanes] = NONE
        self.result[lanes] = NOTHING

    def _tool_masks(self, lanes: Lanes) -> NDArray[np.bool_]:
        """Return a mask of the tools that are accepted, ``submit`` last, which needs a record beyond the given one."""
        found_any = self.known[lanes].sum(axis=1) > 1
        return np.concatenate([self.online[lanes], found_any[:, None]], axis=1)

    def split_actions(self, actions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Split each action into its tool and its argument."""
        if self.flat:
            return actions // self.level.n_records, actions % self.level.n_records
        return actions[..., 0], actions[..., 1]

    def _advance(self, actions: NDArray[np.int64], lanes: Lanes) -> StepResult:
        tools, arguments = self.split_actions(actions)
        rows = np.arange(len(tools))
        turns, requests = self.turns[lanes], self.requests[lanes]
        records, known = self.records[lanes], self.known[lanes]
        accepted = self._tool_masks(lanes)[rows, tools] & (tools != NO_ACTION)
        submits = tools == self.submit
        # "Submit" and no action get some tool here, which has no effect.
        calls = np.where(submits | (tools == NO_ACTION), 0, tools)
        takes, returns = self._takes[calls], calls + 1
        times_out = uniform(self.noise_seeds[lanes], _TIMEOUT, turns) < self.level.timeout
        status = np.full(len(tools), OK)
        status[times_out] = TIMEOUT
        status[arguments != records[rows, takes]] = NOT_FOUND
        status[~known[rows, takes]] = NEEDS_INPUT
        status[submits] = NONE
        status[~accepted] = REFUSED
        self.refused[lanes] = ~accepted
        ok = status == OK
        known[rows, returns] |= ok
        self.known[lanes] = known
        self.status[lanes] = status
        self.result[lanes] = np.where(ok, records[rows, returns], NOTHING)
        submitted = submits & accepted
        dones = submitted | (turns == self.max_turns)
        successes = submitted & known[rows, self._paths[requests, -1]]
        n_found = (known & self._wanted[requests]).sum(axis=1)
        rewards = np.where(successes, 1.0, np.where(dones, PARTIAL_CREDIT * n_found / self.level.distance, 0.0))
        return StepResult(rewards.astype(np.float32), dones, successes)

    def observe(self, lanes: Lanes = ALL_LANES) -> NDArray[np.float32]:
        n_records = self.level.n_records
        visible = np.where(self.known[lanes], self.records[lanes], NOTHING)
        parts = [
            one_hot(self.requests[lanes], len(self._paths)),
            self.online[lanes].astype(np.float32),
            one_hot(visible.reshape(-1), n_records).reshape(len(visible), -1),
            one_hot(self.result[lanes], n_records),
            one_hot(self.status[lanes], N_STATUSES),
            one_hot(self.turns[lanes], self.max_turns),
        ]
        return np.concatenate(parts, axis=1)

    def action_masks(self, lanes: Lanes = ALL_LANES) -> NDArray[np.bool_]:
        tools = self._tool_masks(lanes)
        n_records = self.level.n_records
        if self.flat:
            return np.concatenate([tools[:, :-1].repeat(n_records, axis=1), tools[:, -1:]], axis=1)
        return np.concatenate([tools, np.ones((len(tools), n_records), dtype=bool)], axis=1)

    def expert_actions(self, lanes: Lanes = ALL_LANES) -> NDArray[np.int64]:
        path = self._paths[self.requests[lanes]]
        rows = np.arange(len(path))
        known = self.known[lanes][rows[:, None], path]
        # The records of a path are found in order, so the position of the first gap is the number of known records.
        position = known.sum(axis=1)
        finished = position == path.shape[1]
        last_known = path[rows, position - 1]
        following = path[rows, np.where(finished, 0, position)]
        tools = np.where(finished, self.submit, following - 1)
        arguments = np.where(finished, 0, self.records[lanes][rows, last_known])
        if self.flat:
            return tools * self.level.n_records + arguments
        return np.stack([tools, arguments], axis=1)

    def _record_text(self, lane: int, record_type: int) -> str:
        return TYPES[record_type].records[int(self.records[lane, record_type])]

    def opening_text(self, lane: int) -> str:
        given, wanted = self._paths[self.requests[lane], [0, -1]]
        tools = [tool.name for tool, online in zip(TOOLS, self.online[lane], strict=False) if online]
        return (
            f"System: Tools online: {', '.join(tools)}, submit. At most {self.max_turns} turns.\n"
            f"User: {TYPES[given].given.format(self._record_text(lane, given))} {TYPES[wanted].wanted}"
        )

    def action_text(self, lane: int, action: NDArray[np.int64]) -> str:
        tool, argument = (int(part) for part in self.split_actions(action))
        if tool != self.submit:
            name, takes = TOOLS[tool]
            return f'{name}("{TYPES[takes].records[argument]}")'
        wanted = self._paths[self.requests[lane], -1]
        return f'submit("{self._record_text(lane, wanted)}")' if self.known[lane, wanted] else "submit()"

    def reply_text(self, lane: int, action: NDArray[np.int64], result: StepResult) -> str:
        tool = int(self.split_actions(action)[0])
        text = self._tool_text(lane, tool)
        if not result.dones[0]:
            return text
        if tool == self.submit and self.status[lane] != REFUSED:
            text = "User: Thank you, that is what I wanted to know."
            if not result.successes[0]:
                text = "User: That does not answer my question."
        else:
            text += "\nUser: I cannot wait any longer. Goodbye."
        return f"{text}\nReward: {result.rewards[0]:.3g}"

    def _tool_text(self, lane: int, tool: int) -> str:
        if tool == NO_ACTION:
            return "Tool: error: no tool was called"
        if tool == self.submit:
            return "Tool: error: nothing found yet that could be submitted"
        name, takes = TOOLS[tool]
        label, returned = TYPES[takes].label, TYPES[tool + 1]
        replies = {
            OK: f"{returned.label} {returned.records[self.result[lane]]}",
            NEEDS_INPUT: f"error: needs a known {label}",
            NOT_FOUND: f"error: {label} not found",
            TIMEOUT: "error: timed out, try again",
            REFUSED: f"error: {name} is offline",
        }
        return f"Tool: {replies[int(self.status[lane])]}"

    def short_texts(self, lane: int) -> dict[str, int | NDArray[np.int64]]:
        submit = np.array(self.submit * self.level.n_records if self.flat else [self.submit, 0])
        return {"submit": submit}  # without the answer


class ToolChainEnv(MaskedTaskEnv):
    """
    ## Description
    The support agent of a shop answers a request with tools. Each tool takes a record of one type and returns
    one of another::

        name -find_customer-> customer -list_orders-> order
        order -track_parcel-> parcel -locate_depot-> depot
        order -find_product-> product -check_stock-> shelf
        order -get_invoice-> invoice -issue_refund-> receipt

    The user gives one record (a name or a customer number) and wants another, some tools further down. The
    agent has to call the tools on the way in order, each with the record that the one before it returned. It has to
    repeat a call that timed out, and to submit once it knows the wanted record. The other tools work as well but lead
    elsewhere, and every call costs a turn.

    | level | tools | tools needed | records of each type | turns | timeouts | tools not needed, offline |
    | --- | --- | --- | --- | --- | --- | --- |
    | easy | the 4 up to ``find_product`` | 2 | 3 | 6 | none | none |
    | medium | the 6 up to ``locate_depot`` | 3 | 4 | 8 | 10% of right calls | none |
    | hard | all 8 | 4 | 5 | 12 | 20% of right calls | each with probability 0.5 |

    The tools are numbered ``find_customer``, ``list_orders``, ``track_parcel``, ``find_product``,
    ``get_invoice``, ``locate_depot``, ``check_stock``, ``issue_refund``; "submit" follows the last one of the
    level.

    ## Action Space
    ``MultiDiscrete([tools + 1, records])``: the tool ("submit" last), and the record given to it, of the type that the
    tool takes. "Submit" ignores its argument. With ``flat=True`` ``Discrete(tools * records + 1)``:
    ``tool * records + argument``, and "submit" last.

    ``action_masks()`` tells which choices are accepted now: tools that are online, and "submit" after the first call
    that returned a record. A choice that is not accepted costs the turn and gets an error. So does a call if no record
    of the tool's type is known, or with another record than the known one.

    ## Observation Space
    ``Box(0, 1, (d,))``: what an agent would have in its context. In this order:

    - the request (one-hot over the pairs of given and wanted type)
    - for each tool, whether it is online
    - for each type, the known record (one-hot, zeros if unknown); the types are name, customer, order, parcel, product,
      invoice, depot, shelf and receipt, as far as the level has them
    - the record that the last call returned (one-hot, zeros if none)
    - the last reply (one-hot: none, ok, needs a known record, not found, timed out, not accepted)
    - the turn (one-hot, zeros after the last)

    Records that no tool has returned yet are hidden. ``d`` is 37 (easy), 56 (medium), 79 (hard).

    ## Rewards
    At the end: 1 if the agent submitted and knew the wanted record; else 0.5 times the fraction of the records on the
    way to it, itself included, that were found. ``info["is_success"]`` tells whether the reward is 1.

    ## Starting State
    Drawn from the seed: the request, the records and the tools that are offline. Timeouts depend on the seed and the
    turn alone.

    ## Episode End
    The episode terminates after an accepted "submit" and after the last turn of the level.

    ## Arguments
    - ``level`` (default ``"easy"``): ``"easy"``, ``"medium"`` or ``"hard"``
    - ``flat`` (default False): one ``Discrete`` action in place of the pair
    - ``render_mode``: ``"ansi"`` for a transcript

    ## Version History
    - v0: first version
    """

    def __init__(self, level: str = "easy", flat: bool = False, render_mode: str | None = None) -> None:
        super().__init__(partial(ToolChain, level=level, flat=flat), render_mode)
