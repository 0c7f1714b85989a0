"""Evaluation with intervals and paired tests: of models, of judges, of rewards."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.bench.comparable import differing as differing
    from burnish.bench.comparison import Answered as Answered
    from burnish.bench.comparison import Comparison as Comparison
    from burnish.bench.comparison import HeldOutRun as HeldOutRun
    from burnish.bench.comparison import JudgeComparison as JudgeComparison
    from burnish.bench.comparison import Method as Method
    from burnish.bench.comparison import PairedTest as PairedTest
    from burnish.bench.comparison import compare as compare
    from burnish.bench.comparison import compare_judges as compare_judges
    from burnish.bench.comparison import p_text as p_text
    from burnish.bench.comparison import paired_test as paired_test
    from burnish.bench.edits import CUTS as CUTS
    from burnish.bench.edits import EDITS as EDITS
    from burnish.bench.edits import Edit as Edit
    from burnish.bench.evaluation import Evaluated as Evaluated
    from burnish.bench.evaluation import Evaluation as Evaluation
    from burnish.bench.evaluation import evaluate as evaluate
    from burnish.bench.first_wrong import FirstWrong as FirstWrong
    from burnish.bench.first_wrong import best_threshold as best_threshold
    from burnish.bench.first_wrong import calibrated_f1 as calibrated_f1
    from burnish.bench.first_wrong import first_flagged as first_flagged
    from burnish.bench.first_wrong import first_wrong_f1 as first_wrong_f1
    from burnish.bench.first_wrong import halves as halves
    from burnish.bench.first_wrong import labels_of as labels_of
    from burnish.bench.items import Choice as Choice
    from burnish.bench.items import Item as Item
    from burnish.bench.items import Judged as Judged
    from burnish.bench.items import choice_of as choice_of
    from burnish.bench.items import preference_rows as preference_rows
    from burnish.bench.items import solution_rows as solution_rows
    from burnish.bench.judge_accuracy import Accuracy as Accuracy
    from burnish.bench.judge_accuracy import Detection as Detection
    from burnish.bench.judge_accuracy import accuracy as accuracy
    from burnish.bench.judge_accuracy import agreement as agreement
    from burnish.bench.judge_accuracy import by_style as by_style
    from burnish.bench.judge_accuracy import by_subset as by_subset
    from burnish.bench.judge_accuracy import cohen_kappa as cohen_kappa
    from burnish.bench.judge_accuracy import detection as detection
    from burnish.bench.judge_accuracy import fleiss_kappa as fleiss_kappa
    from burnish.bench.judge_accuracy import flips as flips
    from burnish.bench.judging import ResultFile as ResultFile
    from burnish.bench.judging import judge_items as judge_items
    from burnish.bench.judging import read_results as read_results
    from burnish.bench.probe import ask_edits as ask_edits
    from burnish.bench.probe import ask_twice as ask_twice
    from burnish.bench.probe import edit_findings as edit_findings
    from burnish.bench.probe import pair_findings as pair_findings
    from burnish.bench.proxy_transfer import RubricCase as RubricCase
    from burnish.bench.proxy_transfer import rubric_transfer as rubric_transfer
    from burnish.bench.reward_check import Case as Case
    from burnish.bench.reward_check import check_reward as check_reward
    from burnish.bench.run_tables import RunGroup as RunGroup
    from burnish.bench.run_tables import RunTable as RunTable
    from burnish.bench.run_tables import SeedMean as SeedMean
    from burnish.bench.run_tables import run_table as run_table
    from burnish.bench.statistics import Estimate as Estimate
    from burnish.bench.statistics import mcnemar as mcnemar
    from burnish.bench.statistics import mean_estimate as mean_estimate
    from burnish.bench.statistics import paired_difference as paired_difference
    from burnish.bench.statistics import sign_flip as sign_flip
    from burnish.bench.statistics import signed_estimate as signed_estimate
    from burnish.bench.statistics import t_estimate as t_estimate
    from burnish.bench.statistics import wilson as wilson

__getattr__, __dir__ = lazy_exports(__name__)
