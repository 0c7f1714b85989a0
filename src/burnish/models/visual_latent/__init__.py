"""Visual latents: vectors that a model feeds back to itself as imagined pictures (GAP, arXiv 2605.12374)."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.models.visual_latent.head import KINDS as KINDS
    from burnish.models.visual_latent.head import Hidden as Hidden
    from burnish.models.visual_latent.head import LatentHead as LatentHead
    from burnish.models.visual_latent.head import Predicted as Predicted
    from burnish.models.visual_latent.objective import Subspace as Subspace
    from burnish.models.visual_latent.objective import cosine_loss as cosine_loss
    from burnish.models.visual_latent.objective import fit_pca as fit_pca
    from burnish.models.visual_latent.objective import latent_loss as latent_loss
    from burnish.models.visual_latent.objective import norm_ema as norm_ema
    from burnish.models.visual_latent.objective import norm_match as norm_match
    from burnish.models.visual_latent.objective import norm_ratio as norm_ratio
    from burnish.models.visual_latent.objective import pca_rank as pca_rank
    from burnish.models.visual_latent.objective import pool_tokens as pool_tokens
    from burnish.models.visual_latent.objective import project_latents as project_latents
    from burnish.models.visual_latent.objective import reconstruct_latents as reconstruct_latents
    from burnish.models.visual_latent.objective import use_latent as use_latent
    from burnish.models.visual_latent.objective import whiten_latents as whiten_latents
    from burnish.models.visual_latent.records import TEACHER_PROMPT as TEACHER_PROMPT
    from burnish.models.visual_latent.records import LatentResponse as LatentResponse
    from burnish.models.visual_latent.records import PatchEncoder as PatchEncoder
    from burnish.models.visual_latent.records import RejectedResponse as RejectedResponse
    from burnish.models.visual_latent.records import answer_of as answer_of
    from burnish.models.visual_latent.records import parse_response as parse_response
    from burnish.models.visual_latent.records import read_picture as read_picture
    from burnish.models.visual_latent.step import INTERVENTIONS as INTERVENTIONS
    from burnish.models.visual_latent.step import LatentAnswer as LatentAnswer
    from burnish.models.visual_latent.step import LatentRows as LatentRows
    from burnish.models.visual_latent.step import LatentStep as LatentStep
    from burnish.models.visual_latent.step import LatentTags as LatentTags
    from burnish.models.visual_latent.step import generate_latents as generate_latents
    from burnish.models.visual_latent.step import latent_step as latent_step

__getattr__, __dir__ = lazy_exports(__name__)
