"""Tasks with demonstrations, named in configs by path; a few words long, so that runs are short."""


def make(rng):
    grade, rule = rng.choice("ABCD"), rng.choice(("size", "colour", "price"))
    return {
        "prompt": f"item {rng.randrange(1000)}, {rule}?",
        "answer": grade,
        "grade": grade,
        "rule": rule,
        "demonstration": f"{grade}\nrule: {rule}",
    }
