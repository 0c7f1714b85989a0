"""Evaluation with intervals and paired tests: of models, of judges, of rewards."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.bench.comparable import differing as differing
    from burnish.bench.comparison import (
        Answered as Answered,
        Comparison as Comparison,
        HeldOutRun as HeldOutRun,
        JudgeComparison as JudgeComparison,
        Method as Method,
        PairedTest as PairedTest,
        compare as compare,
        compare_judges as compare_judges,
        p_text as p_text,
        paired_test as paired_test,
    )
    from burnish.bench.edits import CUTS as CUTS, EDITS as EDITS, Edit as Edit
    from burnish.bench.evaluation import (
        Evaluated as Evaluated,
        Evaluation as Evaluation,
        evaluate as evaluate,
    )
    from burnish.bench.first_wrong import (
        FirstWrong as FirstWrong,
        best_threshold as best_threshold,
        calibrated_f1 as calibrated_f1,
        first_flagged as first_flagged,
        first_wrong_f1 as first_wrong_f1,
        halves as halves,
        labels_of as labels_of,
    )
    from burnish.bench.items import (
        Choice as Choice,
        Item as Item,
        Judged as Judged,
        choice_of as choice_of,
        preference_rows as preference_rows,
        solution_rows as solution_rows,
    )
    from burnish.bench.judge_accuracy import (
        Accuracy as Accuracy,
        Detection as Detection,
        accuracy as accuracy,
        agreement as agreement,
        by_style as by_style,
        by_subset as by_subset,
        cohen_kappa as cohen_kappa,
        detection as detection,
        fleiss_kappa as fleiss_kappa,
        flips as flips,
    )
    from burnish.bench.judging import (
        ResultFile as ResultFile,
        judge_items as judge_items,
        read_results as read_results,
    )
    from burnish.bench.probe import (
        ask_edits as ask_edits,
        ask_twice as ask_twice,
        edit_findings as edit_findings,
        pair_findings as pair_findings,
    )
    from burnish.bench.proxy_transfer import (
        RubricCase as RubricCase,
        rubric_transfer as rubric_transfer,
    )
    from burnish.bench.reward_check import Case as Case, check_reward as check_reward
    from burnish.bench.run_tables import (
        RunGroup as RunGroup,
        RunTable as RunTable,
        SeedMean as SeedMean,
        run_table as run_table,
    )
    from burnish.bench.statistics import (
        Estimate as Estimate,
        mcnemar as mcnemar,
        mean_estimate as mean_estimate,
        paired_difference as paired_difference,
        sign_flip as sign_flip,
        signed_estimate as signed_estimate,
        t_estimate as t_estimate,
        wilson as wilson,
    )

__getattr__, __dir__ = lazy_exports(__name__)
