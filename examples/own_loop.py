"""A training loop of your own from burnish's parts: a sampler, advantages, a loss, an optimiser.

python examples/own_loop.py          # a random model learns to write digits, in seconds on a CPU
"""

import asyncio

import torch

from burnish import Finish, Message, policy
from burnish.lm import LocalLM, ModelInput, Sampling, load_model

PROMPTS, GROUP = ["Write a digit.", "What is 3 + 4?"], 16
RECIPE = policy.Recipe(advantage=policy.SumThenNormalise(scale="group_std"))


async def train(steps: int = 30) -> list[float]:
    loaded = load_model("tiny", dtype="float32", device="cpu")
    lm, optimiser = LocalLM(loaded), torch.optim.AdamW(loaded.module.parameters(), lr=1e-2)
    means = []
    for step in range(steps):
        how = Sampling(n=GROUP, max_tokens=8, seed=step)
        answers = [a for text in PROMPTS for a in await lm.sample([Message("user", text)], how)]
        digits = [sum(c.isdigit() for c in a.text) / max(len(a.text), 1) for a in answers]
        found = policy.advantages(
            RECIPE,
            policy.RewardBatch(
                rewards_BK=torch.tensor(digits)[:, None].double(),
                weights_K=torch.ones(1).double(),
                groups_B=torch.arange(len(PROMPTS)).repeat_interleave(GROUP),
                lengths_B=torch.tensor([len(a.token_ids) for a in answers]),
                truncated_B=torch.tensor([a.finish is Finish.LENGTH for a in answers]),
            ),
        )
        rows = [torch.tensor(a.prompt_ids + a.token_ids) for a in answers]
        ids_BS = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        places_BS = torch.arange(ids_BS.shape[1]).expand_as(ids_BS)
        starts_B = torch.tensor([len(a.prompt_ids) for a in answers])[:, None]
        ends_B = torch.tensor([len(row) for row in rows])[:, None]
        mask_BT = ((places_BS >= starts_B) & (places_BS < ends_B))[:, 1:]
        logits = loaded.module.logits(loaded.module(ModelInput(ids_BS, places_BS)))[:, :-1]
        logp_BT = logits.log_softmax(-1).gather(-1, ids_BS[:, 1:, None])[..., 0]
        batch = policy.LossBatch(
            logp_BT=logp_BT,
            old_logp_BT=logp_BT.detach(),
            mask_BT=mask_BT,
            advantages_B=found.values_B,
            low_B=found.low_B,
            high_B=found.high_B,
            keep_B=found.keep_B,
        )
        optimiser.zero_grad()
        policy.loss(RECIPE, batch).total.backward()
        optimiser.step()
        means.append(sum(digits) / len(digits))
    return means


if __name__ == "__main__":
    print(" ".join(f"{mean:.2f}" for mean in asyncio.run(train())))
