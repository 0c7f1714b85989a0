"""ATP-Bench: plans of tool calls in place of pictures, and their multi-agent judge (MAM).

    parse_calls(text, TOOLS)                            # tool, args, valid, reason
    response_metrics(calls_correct=[True, False], missed=1)
    atp_scorer()                                        # by the needs of the data, no model

`ThreeRoles` is the pattern behind it, "what is there, what is missing, the whole", for any items.
"""

from burnish.rewards.judges.atp_bench.calls import (
    TOOLS,
    Call,
    Located,
    Validity,
    check_calls,
    locate_calls,
    parse_calls,
    render_call,
    validate_call,
    with_placeholders,
)
from burnish.rewards.judges.atp_bench.execute import Executed, execute_call
from burnish.rewards.judges.atp_bench.judge import AtpOptions, atp_scorer, build
from burnish.rewards.judges.atp_bench.metrics import (
    Corpus,
    Metrics,
    aggregate,
    final_score,
    response_metrics,
)
from burnish.rewards.judges.atp_bench.needs import Need, met_needs, read_needs
from burnish.rewards.judges.atp_bench.three_roles import (
    Case,
    Gap,
    Item,
    Mark,
    Plan,
    RoleReply,
    ThreeRoles,
    plan_of,
)

__all__ = [
    "TOOLS",
    "AtpOptions",
    "Call",
    "Case",
    "Corpus",
    "Executed",
    "Gap",
    "Item",
    "Located",
    "Mark",
    "Metrics",
    "Need",
    "Plan",
    "RoleReply",
    "ThreeRoles",
    "Validity",
    "aggregate",
    "atp_scorer",
    "build",
    "check_calls",
    "execute_call",
    "final_score",
    "locate_calls",
    "met_needs",
    "parse_calls",
    "plan_of",
    "read_needs",
    "render_call",
    "response_metrics",
    "validate_call",
    "with_placeholders",
]
