"""Rewards of the training tests, named in their configs by path: good ones and bad ones."""

import math
import os
import re
import time

from burnish.records import Reward


def letters(text):
    """Share of characters that are letters: nearly always differs inside a group."""
    return sum(c.isalpha() for c in text) / max(len(text), 1)


def has_letter(text):
    """1 or 0, so that some groups agree and teach nothing."""
    return bool(re.search("[a-m]", text))


def constant(text):
    return 1.0


def none(text):
    return None


def nan(text):
    return math.nan


def infinite(text):
    return math.inf if has_letter(text) else 0.0


def words(text):
    return "good"


def too_few(texts):
    return [1.0] * (len(texts) - 1)


def one_for_all(texts):
    return 1.0


def out_half_the_time(text, row, response):
    """A judge that is down for the odd rows from step 2 to step 4."""
    step = int(response.id.split(".")[0])
    if 2 <= step <= 4 and row % 2:
        raise ConnectionError("judge unreachable")
    return letters(text)


def slow_first_group(responses):
    """Past every deadline for the first group of a step."""
    if responses[0].id.split(".")[1] == "0":
        time.sleep(3.0)
    return [letters(response.text) for response in responses]


def wants_more(text, rows, rubric, judge_notes):
    return 1.0


def takes_both(text, texts):
    return 1.0


def positional(text, /):
    return 1.0


class Grader:
    """Not a number and not a Reward."""

    def __call__(self, text):
        return {"score": 1.0}


grader = Grader()


def always_raises(text):
    raise ConnectionError("judge unreachable")


def nan_slowly_at_first(responses):
    time.sleep(0.3 if responses[0].id.split(".")[1] == "0" else 0.0)
    return [math.nan] * len(responses)


class Own(BaseException):
    pass


def raises_base(text):
    raise Own("mine")


def ends_the_process(text):
    os._exit(0)


def wrong_types(text):
    return Reward("x", 1.0, evidence=("seen",))
