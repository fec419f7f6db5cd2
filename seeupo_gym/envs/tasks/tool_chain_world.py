"""The shop of ToolChain: kinds of records, tools, their names, and levels of difficulty."""

from __future__ import annotations

from typing import NamedTuple


class RecordType(NamedTuple):
    """A kind of record: its name, its records, and the sentences of a user who has or wants one."""

    label: str
    records: tuple[str, ...]
    given: str
    wanted: str


class Tool(NamedTuple):
    """A tool: its name, and the index of the record type that it takes. Tool ``i`` returns type ``i + 1``."""

    name: str
    takes: int


class Level(NamedTuple):
    """
    A level of difficulty.

    :param n_tools: number of tools, the first ones of ``TOOLS``
    :param distance: number of tools from the record that the user gives to the one that the user wants
    :param n_records: number of records of each type
    :param max_turns: length of the longest episode
    :param timeout: probability that a right call times out
    :param offline: probability that a tool which the request does not need is offline
    """

    n_tools: int
    distance: int
    n_records: int
    max_turns: int
    timeout: float
    offline: float


ROOT = 0

# At these levels a user only gives a name or a customer number, so the other types need no sentence for giving them.
TYPES = (
    RecordType(
        "name",
        ("Mara Lind", "Theo Okafor", "Ines Duarte", "Jonas Weller", "Priya Nair"),
        "My name is {}.",
        "",
    ),
    RecordType("customer", ("C-103", "C-118", "C-127", "C-146", "C-159"), "My customer number is {}.", ""),
    RecordType("order", ("O-2041", "O-2077", "O-2113", "O-2186", "O-2230"), "", "What is the number of my last order?"),
    RecordType("parcel", ("P-31", "P-48", "P-52", "P-67", "P-90"), "", "Which parcel is my last order in?"),
    RecordType(
        "product",
        ("desk lamp", "tea kettle", "wool blanket", "bread knife", "wall clock"),
        "",
        "What was it that I ordered last?",
    ),
    RecordType(
        "invoice",
        ("INV-4402", "INV-4419", "INV-4435", "INV-4470", "INV-4488"),
        "",
        "Which invoice belongs to my last order?",
    ),
    RecordType(
        "depot",
        ("North Dock", "Mill Lane", "Harbor Gate", "East Yard", "Station Road"),
        "",
        "At which depot is my parcel now?",
    ),
    RecordType(
        "shelf",
        ("A-12", "B-07", "C-21", "D-03", "E-16"),
        "",
        "I would like the same product once more. On which shelf is it?",
    ),
    RecordType(
        "receipt",
        ("R-5501", "R-5518", "R-5532", "R-5567", "R-5590"),
        "",
        "Please refund my last order. What is the number of the receipt?",
    ),
)

TOOLS = (
    Tool("find_customer", 0),
    Tool("list_orders", 1),
    Tool("track_parcel", 2),
    Tool("find_product", 2),
    Tool("get_invoice", 2),
    Tool("locate_depot", 3),
    Tool("check_stock", 4),
    Tool("issue_refund", 5),
)

LEVELS = {
    "easy": Level(n_tools=4, distance=2, n_records=3, max_turns=6, timeout=0.0, offline=0.0),
    "medium": Level(n_tools=6, distance=3, n_records=4, max_turns=8, timeout=0.1, offline=0.0),
    "hard": Level(n_tools=8, distance=4, n_records=5, max_turns=12, timeout=0.2, offline=0.5),
}


def paths(n_tools: int, distance: int) -> list[list[int]]:
    """
    List all requests: every chain of types that ``distance`` of the first ``n_tools`` tools link.

    :param n_tools: number of tools
    :param distance: number of tools in a chain
    :return: for each request the ``distance + 1`` types from the given one to the wanted one
    """
    found = []
    for target in range(1, n_tools + 1):
        path = [target]
        while path[0] != ROOT and len(path) <= distance:
            path.insert(0, TOOLS[path[0] - 1].takes)
        if len(path) == distance + 1:
            found.append(path)
    return found
