"""Visual latents: vectors that a model feeds back to itself as imagined pictures (GAP, arXiv 2605.12374)."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.models.visual_latent.head import (
        KINDS as KINDS,
        Hidden as Hidden,
        LatentHead as LatentHead,
        Predicted as Predicted,
    )
    from burnish.models.visual_latent.objective import (
        Subspace as Subspace,
        cosine_loss as cosine_loss,
        fit_pca as fit_pca,
        latent_loss as latent_loss,
        norm_ema as norm_ema,
        norm_match as norm_match,
        norm_ratio as norm_ratio,
        pca_rank as pca_rank,
        pool_tokens as pool_tokens,
        project_latents as project_latents,
        reconstruct_latents as reconstruct_latents,
        use_latent as use_latent,
        whiten_latents as whiten_latents,
    )
    from burnish.models.visual_latent.records import (
        TEACHER_PROMPT as TEACHER_PROMPT,
        LatentResponse as LatentResponse,
        PatchEncoder as PatchEncoder,
        RejectedResponse as RejectedResponse,
        answer_of as answer_of,
        parse_response as parse_response,
        read_picture as read_picture,
    )
    from burnish.models.visual_latent.step import (
        INTERVENTIONS as INTERVENTIONS,
        LatentAnswer as LatentAnswer,
        LatentRows as LatentRows,
        LatentStep as LatentStep,
        LatentTags as LatentTags,
        generate_latents as generate_latents,
        latent_step as latent_step,
    )

__getattr__, __dir__ = lazy_exports(__name__)
