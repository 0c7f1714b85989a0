from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from burnish.lm.folder import find_folder  # the folder of the same model, for both

rows = [
    {"prompt": [{"role": "user", "content": f"What is {a} + {b}?"}]}
    for a in range(10)
    for b in range(10)
]


def digits(completions: list[list[dict[str, str]]], **_: object) -> list[float]:
    texts = [completion[0]["content"] for completion in completions]
    return [sum(letter.isdigit() for letter in text) / max(len(text), 1) for text in texts]


config = GRPOConfig(
    output_dir="trl",
    max_steps=40,
    per_device_train_batch_size=32,
    num_generations=8,
    max_completion_length=16,
    learning_rate=1e-3,
    report_to=[],
    use_cpu=True,
    bf16=False,
    logging_steps=1,
    save_strategy="no",
)
trainer = GRPOTrainer(
    model=str(find_folder("tiny")),
    reward_funcs=digits,
    args=config,
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
print([entry["reward"] for entry in trainer.state.log_history if "reward" in entry][-5:])
