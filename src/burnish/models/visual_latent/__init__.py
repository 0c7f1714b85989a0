"""Visual latents: vectors that a model feeds back to itself as imagined pictures (GAP, arXiv 2605.12374).

Hidden states of a decoder are many times longer than its input embeddings, so feeding them back
breaks it. `fit_pca` finds the subspace of vision embeddings, a head predicts coefficients in it, and
`reconstruct_latents` makes an input of them. `use_latent` keeps latents for the queries that need them.
`LatentHead` is that head and its baselines, `latent_step` the loss, `generate_latents` the generation.
"""

from burnish.models.visual_latent.generate import (
    INTERVENTIONS,
    LatentAnswer,
    LatentTags,
    generate_latents,
)
from burnish.models.visual_latent.head import KINDS, Hidden, LatentHead, Predicted
from burnish.models.visual_latent.objective import (
    cosine_loss,
    latent_loss,
    norm_ema,
    norm_match,
    norm_ratio,
    pool_tokens,
    use_latent,
)
from burnish.models.visual_latent.pictures import PatchEncoder, read_picture
from burnish.models.visual_latent.records import (
    TEACHER_PROMPT,
    LatentResponse,
    RejectedResponse,
    answer_of,
    parse_response,
)
from burnish.models.visual_latent.step import LatentRows, LatentStep, latent_step
from burnish.models.visual_latent.subspace import (
    Subspace,
    fit_pca,
    pca_rank,
    project_latents,
    reconstruct_latents,
    whiten_latents,
)

__all__ = [
    "INTERVENTIONS",
    "KINDS",
    "TEACHER_PROMPT",
    "Hidden",
    "LatentAnswer",
    "LatentHead",
    "LatentResponse",
    "LatentRows",
    "LatentStep",
    "LatentTags",
    "PatchEncoder",
    "Predicted",
    "RejectedResponse",
    "Subspace",
    "answer_of",
    "cosine_loss",
    "fit_pca",
    "generate_latents",
    "latent_loss",
    "latent_step",
    "norm_ema",
    "norm_match",
    "norm_ratio",
    "parse_response",
    "pca_rank",
    "pool_tokens",
    "project_latents",
    "read_picture",
    "reconstruct_latents",
    "use_latent",
    "whiten_latents",
]
