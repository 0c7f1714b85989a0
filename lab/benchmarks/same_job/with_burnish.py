import burnish

rows = [{"prompt": f"What is {a} + {b}?"} for a in range(10) for b in range(10)]


def digits(text: str) -> float:
    return sum(letter.isdigit() for letter in text) / max(len(text), 1)


run = burnish.train(
    "grpo",
    model="tiny",
    data=rows,
    rewards=[digits],
    steps=40,
    rollout={"prompts": 4, "samples": 8, "max_tokens": 16},
    optimiser={"learning_rate": 1e-3},
)
print(run.metrics()["reward/total"].tail())
