"""TRL's `GRPOTrainer` with the advantages and the policy loss of a recipe.

What follows its reward functions and `_compute_loss` are replaced; the recipe says what GRPOConfig
would (loss_type, scale_rewards, epsilon, entropy_coef ...). Each reward function is a reward of its own.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from burnish.engines.bridge import engine
from burnish.engines.recipes import portable, step_advantages
from burnish.errors import UserError
from burnish.lm.base import JsonObject
from burnish.policy import KL, Advantages, LossBatch, Normaliser, Recipe, RewardBatch, loss
from burnish.seeds import derive
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

_MEDIA = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes",
    "num_tiles", "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip
"""What TRL's forward takes beside the tokens."""


def as_trl_trainer(recipe: Recipe) -> type[Any]:
    """A subclass of `trl.GRPOTrainer` that trains by the recipe.

    `GRPOConfig.beta` must be the coefficient of the recipe's KL term, 0 without one. Marks of tokens
    (`high_entropy`, `clip_cov`, `kl_cov`) are those of one micro-batch, as in TRL.
    """
    own = portable(recipe, "TRL")
    return type("RecipeTrainer", (_RecipeTrainer, engine("trl").GRPOTrainer), {"recipe": own})


class _RecipeTrainer:
    recipe: Recipe
    _rewards_BK: Tensor
    _whole: tuple[float, float]  # tokens and rollouts that count, of what was sampled

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        kl = sum(term.coefficient for term in self.recipe.auxiliary if isinstance(term, KL))
        if self.beta != kl:  # TRL loads the reference model by it
            raise UserError(f"GRPOConfig: beta is {self.beta}, and the recipe's kl has {kl}.")

    def _calculate_rewards(self, *given: Any) -> Tensor:
        self._rewards_BK = super()._calculate_rewards(*given)  # type: ignore[misc]
        return self._rewards_BK

    def _generate_and_score_completions(self, inputs: Any) -> JsonObject:
        output: JsonObject = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        step = self._advantages(output)
        own = {"advantages": step.values_B.float(), "burnish_keep": step.keep_B}
        own |= {"burnish_low": step.low_B.float(), "burnish_high": step.high_B.float()}
        like, start = output["advantages"], self.accelerator.process_index * len(inputs)
        output |= {k: v[start : start + len(inputs)].to(like.device) for k, v in own.items()}
        for name, value in step.diagnostics.items():
            self._note(f"policy/{name}", value)
        logged = self._logs["advantages"]  # where TRL has just put its own
        values = [*list(logged)[: -len(step.values_B)], *step.values_B.tolist()]
        self._logs["advantages"] = deque(values, logged.maxlen)
        return output

    def _advantages(self, output: JsonObject) -> Advantages:
        """Advantages of every process's rollouts, from rewards that TRL has gathered."""
        is_training, ids_BT = self.model.training, output["completion_ids"]
        samples = self.num_generations if is_training else self.num_generations_eval
        end_B1 = (output["completion_mask"].sum(1, keepdim=True) - 1).clamp(min=0)
        ends = torch.tensor(list(self.eos_token_ids), device=ids_BT.device)
        is_cut_B = ~torch.isin(ids_BT.gather(1, end_B1)[:, 0], ends)
        both_B2 = torch.stack([_mask(output).sum(1), is_cut_B.long()], 1)
        lengths_B, truncated_B = self.accelerator.gather(both_B2).cpu().unbind(1)
        batch = RewardBatch(
            self._rewards_BK,
            self.reward_weights.double().cpu(),
            torch.arange(len(lengths_B)) // samples,
            lengths_B,
            truncated_B.bool(),
            tuple(self.reward_func_names),
            seed=derive(self.args.seed, "step", self.state.global_step),
            max_tokens=self.max_completion_length,
        )
        step = step_advantages(self.recipe, batch, "TRL")
        if is_training:
            everyone = self.recipe.aggregate.keep_denominator
            counted_B = torch.ones_like(step.keep_B) if everyone else step.keep_B & (lengths_B > 0)
            self._whole = float(lengths_B[counted_B].sum()), float(counted_B.sum())
        return step

    def _compute_loss(self, model: Any, inputs: JsonObject) -> Tensor:
        pair = ("ids", "mask")
        logp_BT, entropy_BT, balance = self._get_per_token_logps_and_entropies(
            model,
            *(torch.cat([inputs[f"prompt_{x}"], inputs[f"completion_{x}"]], 1) for x in pair),
            inputs["completion_ids"].shape[1],
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled,
            **{name: inputs.get(name) for name in _MEDIA},
        )
        passes = self.current_gradient_accumulation_steps if self.model.training else 1
        found = loss(self.recipe, self._loss_batch(inputs, logp_BT, entropy_BT, passes))
        shown = {"clip_ratio/region_mean": found.clipped_share, "ratio_max": found.ratio_max}
        shown |= {f"loss/{name}": value for name, value in found.parts.items()}
        for name, value in shown.items():
            self._note(name, self.accelerator.gather(value.detach().float()).mean().item())
        return found.total + (
            0.0 if balance is None else self.router_aux_loss_coef * balance / passes
        )

    def _loss_batch(
        self, inputs: JsonObject, logp_BT: Tensor, entropy_BT: Tensor, passes: int
    ) -> LossBatch:
        # One update takes this part of what was sampled, and TRL takes the mean over processes.
        part = passes / self.args.steps_per_generation / self.accelerator.num_processes
        old_BT = inputs.get("old_per_token_logps", logp_BT.detach())
        sampler_BT = inputs.get("sampling_per_token_logps")
        if sampler_BT is not None:  # vLLM leaves out what it could not score
            sampler_BT = torch.where(sampler_BT.isnan(), old_BT, sampler_BT)
        return LossBatch(
            logp_BT,
            old_BT,
            _mask(inputs).bool(),
            inputs["advantages"],
            inputs["burnish_low"],
            inputs["burnish_high"],
            inputs["burnish_keep"],
            Normaliser(*(part * n for n in self._whole)) if self.model.training else None,
            inputs.get("ref_per_token_logps"),
            entropy_BT,
            self.max_completion_length,
            sampler_logp_BT=sampler_BT,
            seed=derive(self.args.seed, "update", self._step),
        )

    def _note(self, name: str, value: float) -> None:
        self._metrics["train" if self.model.training else "eval"][name].append(value)


def _mask(inputs: JsonObject) -> Tensor:
    """The trained tokens of each completion: none of a tool's."""
    return inputs["completion_mask"] * inputs.get("tool_mask", 1)  # type: ignore[no-any-return]
