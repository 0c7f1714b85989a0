"""The method at unit scale: a two-layer model that obeys a policy in its context learns to obey without.

The tiny model is first taught to say yes without the policy and no with it, and to greet either
way. Distilled from itself with the policy, it says no without it, and still greets.
"""

import asyncio
import json

import pytest
import torch
from training_cases import SMALL, finish, merged

from burnish.agents.policyalign import Contexts, parse_policy
from burnish.config import Config, load
from burnish.lm import load_model
from burnish.lm.base import Sampling
from burnish.lm.folder import save_model
from burnish.lm.model_input import ModelInput
from burnish.training import build
from burnish.training.events import StepDone

RULE = "- Rule: say no."
POLICY = parse_policy(RULE)
ASKED = [f"may I {one}?" for one in ("go", "eat", "run", "sit", "see", "ask")]
GREETED = ["hello", "good day", "hi there"]


@pytest.fixture(scope="module")
def obedient(tmp_path_factory):
    """A model folder: `no` with the policy, `yes` without; `hi` to greetings in both."""
    loaded = load_model("tiny", dtype="float32", device="cpu")
    contexts = Contexts(loaded, POLICY)
    tokenizer, module = loaded.tokenizer, loaded.module
    rows = []
    for told in (False, True):
        for text in ASKED + GREETED:
            answer = "hi" if text in GREETED else ("no" if told else "yes")
            prompt = tokenizer.render(contexts.messages(text, told=told))
            rows.append((prompt, [*tokenizer.encode(answer), tokenizer.eos_ids[0]]))
    length = max(len(p) + len(a) for p, a in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    targets = torch.full_like(ids, -100)
    for row, (prompt, answer) in enumerate(rows):
        ids[row, : len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
        targets[row, len(prompt) - 1 : len(prompt) + len(answer) - 1] = torch.tensor(answer)
    positions = torch.arange(length).expand(len(rows), length)
    optimiser = torch.optim.AdamW(module.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(150):
        logits = module.logits(module(ModelInput(ids, positions)))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if loss.item() < 0.005:
            break
    return str(save_model(loaded, tmp_path_factory.mktemp("obedient") / "model"))


def said(folder, texts, *, told=False):
    contexts = Contexts(load_model(folder, dtype="float32", device="cpu"), POLICY)
    sampling = Sampling(temperature=0.0, max_tokens=4)
    return [one.text for one in asyncio.run(contexts.answers(texts, sampling, told=told))]


@pytest.mark.parametrize("teacher", ["frozen", "ema"])
def test_a_policy_moves_into_the_weights(tmp_path, obedient, teacher):
    assert said(obedient, ASKED[:2]) == ["yes", "yes"]
    assert said(obedient, ASKED[:2], told=True) == ["no", "no"]
    (tmp_path / "policy.md").write_text(RULE)
    lines = [json.dumps({"q": text}) for text in ASKED[:4] + GREETED[:2]]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    small = {key: value for key, value in SMALL.items() if key != "rewards"}
    tables = {
        "model": {"path": obedient},
        "task": {"kind": "file", "path": "tasks.jsonl", "prompt": "q"},
        "train": {"kind": "distil", "policies": ["policy.md"], "teacher": teacher, "batch": 6},
        "rollout": {"max_tokens": 4},
        "steps": 25,
        "optimiser": {"learning_rate": 2e-3},
        "evaluation": {"prompts": 0},
    }
    trainer = build(load(Config, merged(small, tables)), tmp_path / "run", root=tmp_path)
    events = finish(trainer)
    kl = [event.metrics["kl/teacher"] for event in events if isinstance(event, StepDone)]
    assert sum(kl[-5:]) < 0.5 * sum(kl[:5])
    weights = str(max((tmp_path / "run" / "checkpoints").glob("step-*")))
    after = said(weights, ASKED[:4] + GREETED[:2])
    assert after[:4].count("no") >= 3, after
    assert after[4:].count("hi") >= 1, after
