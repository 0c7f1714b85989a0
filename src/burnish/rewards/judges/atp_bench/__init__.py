"""ATP-Bench: plans of tool calls in place of pictures, and their multi-agent judge (MAM).

    parse_calls(text, TOOLS)                            # tool, args, valid, reason
    response_metrics(calls_correct=[True, False], missed=1)
    atp_scorer()                                        # by the needs of the data, no model

`ThreeRoles` is the pattern behind it, "what is there, what is missing, the whole", for any items.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.judges.atp_bench.calls import (
        TOOLS as TOOLS,
        Call as Call,
        Executed as Executed,
        Located as Located,
        Validity as Validity,
        check_calls as check_calls,
        execute_call as execute_call,
        locate_calls as locate_calls,
        parse_calls as parse_calls,
        render_call as render_call,
        validate_call as validate_call,
        with_placeholders as with_placeholders,
    )
    from burnish.rewards.judges.atp_bench.judge import (
        AtpOptions as AtpOptions,
        atp_scorer as atp_scorer,
        build as build,
    )
    from burnish.rewards.judges.atp_bench.needs import (
        Need as Need,
        met_needs as met_needs,
        read_needs as read_needs,
    )
    from burnish.rewards.judges.atp_bench.three_roles import (
        Case as Case,
        Corpus as Corpus,
        Gap as Gap,
        Item as Item,
        Mark as Mark,
        Metrics as Metrics,
        Plan as Plan,
        RoleReply as RoleReply,
        ThreeRoles as ThreeRoles,
        aggregate as aggregate,
        final_score as final_score,
        plan_of as plan_of,
        response_metrics as response_metrics,
    )

__getattr__, __dir__ = lazy_exports(__name__)
