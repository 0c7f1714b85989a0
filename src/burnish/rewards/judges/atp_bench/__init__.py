"""ATP-Bench: plans of tool calls in place of pictures, and their multi-agent judge (MAM).

    parse_calls(text, TOOLS)                            # tool, args, valid, reason
    response_metrics(calls_correct=[True, False], missed=1)
    atp_scorer()                                        # by the needs of the data, no model

`ThreeRoles` is the pattern behind it, "what is there, what is missing, the whole", for any items.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.judges.atp_bench.calls import TOOLS as TOOLS
    from burnish.rewards.judges.atp_bench.calls import Call as Call
    from burnish.rewards.judges.atp_bench.calls import Executed as Executed
    from burnish.rewards.judges.atp_bench.calls import Located as Located
    from burnish.rewards.judges.atp_bench.calls import Validity as Validity
    from burnish.rewards.judges.atp_bench.calls import check_calls as check_calls
    from burnish.rewards.judges.atp_bench.calls import execute_call as execute_call
    from burnish.rewards.judges.atp_bench.calls import locate_calls as locate_calls
    from burnish.rewards.judges.atp_bench.calls import parse_calls as parse_calls
    from burnish.rewards.judges.atp_bench.calls import render_call as render_call
    from burnish.rewards.judges.atp_bench.calls import validate_call as validate_call
    from burnish.rewards.judges.atp_bench.calls import with_placeholders as with_placeholders
    from burnish.rewards.judges.atp_bench.judge import AtpOptions as AtpOptions
    from burnish.rewards.judges.atp_bench.judge import atp_scorer as atp_scorer
    from burnish.rewards.judges.atp_bench.judge import build as build
    from burnish.rewards.judges.atp_bench.needs import Need as Need
    from burnish.rewards.judges.atp_bench.needs import met_needs as met_needs
    from burnish.rewards.judges.atp_bench.needs import read_needs as read_needs
    from burnish.rewards.judges.atp_bench.three_roles import Case as Case
    from burnish.rewards.judges.atp_bench.three_roles import Corpus as Corpus
    from burnish.rewards.judges.atp_bench.three_roles import Gap as Gap
    from burnish.rewards.judges.atp_bench.three_roles import Item as Item
    from burnish.rewards.judges.atp_bench.three_roles import Mark as Mark
    from burnish.rewards.judges.atp_bench.three_roles import Metrics as Metrics
    from burnish.rewards.judges.atp_bench.three_roles import Plan as Plan
    from burnish.rewards.judges.atp_bench.three_roles import RoleReply as RoleReply
    from burnish.rewards.judges.atp_bench.three_roles import ThreeRoles as ThreeRoles
    from burnish.rewards.judges.atp_bench.three_roles import aggregate as aggregate
    from burnish.rewards.judges.atp_bench.three_roles import final_score as final_score
    from burnish.rewards.judges.atp_bench.three_roles import plan_of as plan_of
    from burnish.rewards.judges.atp_bench.three_roles import response_metrics as response_metrics

__getattr__, __dir__ = lazy_exports(__name__)
