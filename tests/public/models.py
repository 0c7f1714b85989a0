"""One valid call of every public function of models, and what it lets pass."""

import base64
import tempfile

import torch

from burnish import media, speech
from burnish.models import (
    audio_tokenizer,
    long_speech,
    masked_diffusion,
    siamesenorm,
    visual_latent,
)
from public.common import LOGP, MASK, Case, f64

ENDS = [0.0, 1.0]
WAV = media.encode_sound([0.0, 0.5, -0.5, 0.0], 8000)
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"
)
PLANE = {"components": [[0.6], [0.8]], "mean": [1.0, 1.0]}
WAVES = torch.sin(torch.arange(60, dtype=torch.float64)).reshape(2, 30)
STREAMS = {"X": f64([[[1.0, 2.0], [3.0, 4.0]]]), "Y": f64([[[2.0, 1.0], [0.5, 4.0]]])}
MATRICES = {"first": f64([[1.0, 0.5], [0.0, 1.0]]), "second": f64([[0.0, 1.0], [1.0, 0.0]])}
SCRIPT = {
    "global": {"speakers": [{"id": "A"}]},
    "sentences": [{"speaker": "A", "text": "Yes.", "tone": "tired"}],
    "sources": {"sentences[0].tone": "plan"},
}
CASES = [
    # Two residual streams
    Case(
        siamesenorm.siamese_block,
        {**STREAMS, **MATRICES, "norms": {"first_x": None}, "block_index": 1}
        | {"layout": "post_pre", "norm": "rms", "eps": 1e-5},
        {"norms": "none empty"},
        signed="X Y first second",
    ),
    Case(
        siamesenorm.siamese_trunk,
        {"H": STREAMS["X"], "sublayers": list(MATRICES.values())}
        | {"layout": "hybrid_pre", "norm": "layer", "eps": 1e-6},
        {"H": "empty short"},
        signed="H",
    ),
    Case(
        siamesenorm.siamese_dit_block,
        {**STREAMS, **MATRICES, "cond": f64([[0.5, 1.0, 2.0]]), "W_mod": torch.ones(12, 3) / 9}
        | {"b_mod": torch.zeros(12), "block_index": 0, "eps": 1e-6},
        {"b_mod": "none"},
        signed="X Y first second cond W_mod b_mod",
    ),
    Case(
        siamesenorm.siamese_paper,
        {"H": STREAMS["X"], "sublayers": list(MATRICES.values()), "depth_scaling": "sqrt_l"}
        | {"eps": 1e-5, "x_gain": 1.0, "y_gain": 0.5, "x_start": "embedding", "norm": "rms"},
        {"H": "empty short", "sublayers": "short"},
        signed="H x_gain y_gain",
    ),
    # Audio tokenizer
    Case(audio_tokenizer.channel_normalise, {"z": LOGP}, {"z": "short empty"}, signed="z"),
    Case(
        audio_tokenizer.perturb_latents,
        {"zn": LOGP, "alpha": 0.5, "noise": LOGP},
        signed="zn alpha noise",
    ),
    Case(
        audio_tokenizer.rq_codes,
        {"x": LOGP, "projection": LOGP.T.contiguous(), "codebook": LOGP[:, :2].contiguous()},
        {"x": "short empty", "codebook": "short"},
        signed="x projection codebook",
    ),
    Case(
        audio_tokenizer.rq_mtp_loss,
        {"logits": torch.stack([LOGP, LOGP]), "codes": [1, 0], "valid": [1, 1]},
        {"logits": "short", "valid": "none"},
        signed="logits",
    ),
    Case(audio_tokenizer.patchify_latents, {"z": LOGP}, {"z": "short empty"}, signed="z"),
    Case(
        audio_tokenizer.flow_pair,
        {"noise": LOGP, "data": LOGP, "tau": f64([0.2, 0.5])},
        signed="noise data",
        shares="tau",
    ),
    Case(
        audio_tokenizer.guided_velocity,
        {"v_cond": LOGP, "v_uncond": LOGP, "scale": 2.0},
        signed="v_cond v_uncond scale",
    ),
    Case(
        audio_tokenizer.euler_sample,
        {"velocity": lambda x, tau: -x, "noise": LOGP, "steps": 3},
        {"noise": "short empty"},
        signed="noise",
    ),
    Case(
        audio_tokenizer.si_sdr,
        {"estimate": f64([1.0, -2.0, 0.5]), "reference": f64([0.5, -1.0, 0.7])},
        signed="estimate reference",
    ),
    Case(audio_tokenizer.log_spectral_distance, {"a": LOGP.abs(), "b": LOGP.abs()}),
    Case(
        audio_tokenizer.frechet_distance,
        {
            "mu1": f64([0.0, 1.0]),
            "cov1": f64([[1.0, 0.2], [0.2, 2.0]]),
            "mu2": f64([1.0, 1.0]),
            "cov2": f64([[2.0, 0.0], [0.0, 1.0]]),
        },
        signed="mu1 mu2",
    ),
    Case(
        audio_tokenizer.codec_loss,
        {
            "estimate": WAVES,
            "reference": WAVES / 2,
            "sampling_rate": 8000,
            "lengths": [20, 30],
            "windows": [8, 16],
        },
        {"windows": "short", "lengths": "none"},
        signed="estimate reference",
    ),
    Case(audio_tokenizer.spelled, {"text": "Room 21"}, {"text": "empty word"}),
    # Masked diffusion
    Case(
        masked_diffusion.mirror_masks,
        {"u": f64([[0.1, 0.9]]), "t": [0.5], "eligible": [[1, 1]]},
        shares="u t eps",
    ),
    Case(
        masked_diffusion.mdm_loss,
        {
            "token_nll": LOGP.abs(),
            "mask": MASK,
            "p": f64([0.5, 0.6]),
            "eligible_count": [2, 2],
            "weight": [1.0, 1.0],
        },
        {"weight": "none"},
        signed="token_nll",
        shares="p mask",
    ),
    Case(masked_diffusion.isad_mask_prob, {"p": [0.5], "is_delimiter": [[1, 0]]}, shares="p delta"),
    Case(
        masked_diffusion.optimal_t_density,
        {"g": [1.0, 2.0], "v": [1.0, 1.0], "t_grid": ENDS},
        signed="g",
        shares="t_grid",
    ),
    Case(
        masked_diffusion.sampler_variance,
        {"p": [1.0, 1.0], "g": [1.0, 2.0], "v": [1.0, 1.0], "t_grid": ENDS},
        signed="g",
        shares="p t_grid",
    ),
    Case(
        masked_diffusion.epr_density,
        {"t": ENDS, **dict.fromkeys(("a", "b", "A", "r", "q", "m"), 1.0), "kappa": 0.5},
        {"t": "short empty"},
        shares="t",
    ),
    Case(
        masked_diffusion.fit_epr,
        {
            "t_grid": [0.1, 0.2, 0.4, 0.5, 0.7, 0.9],
            "w": [1.0, 1.1, 1.2, 1.1, 1.4, 1.6],
            "n_starts": 2,
            "mix_uniform": 0.1,
        },
        {"w": "nan item_none"},
        shares="t_grid mix_uniform",
    ),
    Case(
        masked_diffusion.sample_t,
        {"t_grid": ENDS, "density": [1.0, 2.0], "u": [0.2, 0.4], "max_weight": 100.0},
        {"u": "short empty"},
        shares="t_grid u",
    ),
    Case(masked_diffusion.stratum_counts, {"n": 10}),
    Case(
        masked_diffusion.probe_moments,
        {"losses": f64([[[1.0, 2.0]], [[1.0, 1.0]]]), "chances": [[0.5], [1.0]]},
        {"losses": "nan", "loss_max": "none", "chances": "none"},
        signed="losses",
    ),
    Case(
        masked_diffusion.decompose_variance,
        {"losses": f64([[[1.0, 2.0]], [[1.0, 1.0]]])},
        {"losses": "short"},
        signed="losses",
    ),
    Case(
        masked_diffusion.ema_control_variate,
        {"losses": [1.0, 2.0], "t": [0.1, 0.9], "baseline": [0.0, 0.0], "lr": 0.1},
        {"baseline": "short"},
        signed="losses baseline coefficient",
        shares="t lr",
    ),
    Case(
        masked_diffusion.build_noise,
        {
            "rates": "p_pots",
            "delimiters": [3],
            "delimiter_weight": "row",
            "options": {"mix_uniform": 0.1},
        },
        {"delimiters": "empty short", "options": "none empty"},
        shares="delta eps",
    ),
    Case(masked_diffusion.evaluation_uniforms, {"n": 4, "length": 3}),
    Case(
        masked_diffusion.collate,
        {"rows": [{"input_ids": [1, 2], "prompt_length": 1}]},
    ),
    Case(masked_diffusion.is_syntax, {"token": "{", "format": "json"}, {"token": "empty word"}),
    Case(
        masked_diffusion.syntax_eligible,
        {"tokens": ["{", "a"], "format": "json"},
        {"tokens": "empty short"},
    ),
    Case(
        masked_diffusion.template_tokens,
        {"answers": [[1, 2], [2, 3]]},
        {"answers": "short"},
    ),
    # Long speech
    Case(
        long_speech.resolve_timeline,
        {"sentences": [{"speaker": "A", "duration": 1.0}]},
        {"sentences": "empty short"},
    ),
    Case(
        long_speech.overlap_statistics,
        {"timeline": [{"start": 0.0, "end": 1.0, "cut": False}]},
        {"timeline": "empty short"},
    ),
    Case(
        long_speech.noise_gain,
        {"speech": [1.0, 0.5], "active": [1, 0], "noise": f64([0.1, -0.1, 0.1]), "snr_db": 10.0},
        {"noise": "short"},
        signed="speech noise snr_db",
    ),
    Case(
        long_speech.dimension_dropout,
        {"dims": ["tone", "pace"], "u": [0.1, 0.9], "p": 0.3, "protected": ["pace"]},
        {"protected": "empty short"},
        shares="u p",
    ),
    Case(
        long_speech.arc_values,
        {"waypoints": [[0.0, 0.2], [1.0, 0.8]], "n": 3},
        {"waypoints": "short"},
    ),
    Case(
        long_speech.arc_score,
        {"requested": [0.1, 0.5], "measured": [1.0, 2.0]},
        signed="requested measured",
    ),
    Case(long_speech.semitones, {"f0": [110.0, 220.0], "reference": 110.0}, {"f0": "empty short"}),
    Case(long_speech.equal_power_fades, {"n": 4}),
    Case(
        long_speech.label_retention,
        {
            "clips": [{"snr": 30.0, "overlap": 0.0, "speakers": 1}],
            "filter_rule": {"min_snr": 20.0, "max_overlap": 0.05, "speakers": 1},
        },
        {"clips": "empty short", "filter_rule": "none empty"},
    ),
    Case(
        long_speech.plan_chunks,
        {"frames": [4, 5], "max_frames": 6, "context": 2},
        {"frames": "empty short"},
    ),
    *(
        Case(function, {"scene": long_speech.read_scene(SCRIPT)})
        for function in (speech.resolve_manners,)
    ),
    Case(
        long_speech.missing_capabilities,
        {
            "scene": long_speech.read_scene(SCRIPT),
            "manners": [long_speech.Manner()] * len(SCRIPT["sentences"]),
            "engine": long_speech.ToneEngine(),
        },
    ),
    Case(long_speech.read_scene, {"document": SCRIPT}),
    Case(long_speech.scene_problems, {"document": SCRIPT}, {"document": "empty"}),
    *(
        Case(function, {"scene": long_speech.read_scene(SCRIPT)})
        for function in (
            long_speech.write_scene,
            long_speech.scene_text,
            long_speech.scene_warnings,
            long_speech.planned_captions,
        )
    ),
    Case(long_speech.scene_schema, {}),
    Case(
        long_speech.parse_scene_text,
        {"text": long_speech.scene_text(long_speech.read_scene(SCRIPT))},
    ),
    Case(
        long_speech.drop_dimensions,
        {"scene": long_speech.read_scene(SCRIPT), "u": [0.2], "p": 0.3},
        shares="u p",
    ),
    Case(
        long_speech.place_sentences, {"scene": long_speech.read_scene(SCRIPT), "durations": [1.0]}
    ),
    Case(long_speech.room_impulse, {"reverb_s": 0.1, "sample_rate": 1000, "seed": 0}),
    # Visual latents
    Case(
        visual_latent.fit_pca,
        {"embeddings": f64([[1.0, 2.0], [3.0, 1.0], [0.0, 4.0]]), "k": 2},
        {"embeddings": "short", "k": "none"},
        signed="embeddings",
    ),
    Case(
        visual_latent.pca_rank,
        {"eigenvalues": [2.0, 1.0], "target": 0.9},
        {"eigenvalues": "short"},
        shares="target",
    ),
    Case(
        visual_latent.reconstruct_latents,
        {"coeffs": f64([[2.0]]), **PLANE},
        {"coeffs": "empty short"},
        signed="coeffs mean",
    ),
    Case(visual_latent.project_latents, {"v": f64([[2.0, 1.0]]), **PLANE}, signed="v mean"),
    Case(
        visual_latent.whiten_latents,
        {"v": f64([[2.0, 1.0]]), **PLANE, "eigenvalues": [2.0]},
        signed="v mean",
    ),
    Case(
        visual_latent.norm_match,
        {"h": f64([[2.0, 1.0], [1.0, 1.0]]), "norm": [1.0, 2.0]},
        signed="h",
    ),
    Case(
        visual_latent.norm_ema,
        {"value": 1.0, "norms": [2.0, 3.0], "decay": 0.9},
        {"value": "none", "norms": "short empty"},
        shares="decay",
    ),
    Case(
        visual_latent.norm_ratio,
        {"hidden": f64([[2.0, 1.0], [1.0, 1.0]]), "inputs": f64([[1.0, 1.0], [1.0, 0.0]])},
        {"hidden": "short", "inputs": "short"},
        signed="hidden inputs",
    ),
    Case(
        visual_latent.use_latent,
        {"correct": [[1, 0], [1, 1]]},
        {"correct": "short empty item_none"},
        signed="tau",
    ),
    Case(
        visual_latent.pool_tokens,
        {"tokens": f64([[1.0], [2.0], [3.0], [4.0]]), "grid": (2, 2), "K": 2},
        signed="tokens",
    ),
    Case(
        visual_latent.latent_loss,
        {"pred": f64([[1.0, 2.0]] * 2), "target": f64([[1.0, 1.0]] * 2), "mask": [1, 1]},
        {"mask": "none"},
        signed="pred target",
    ),
    Case(
        visual_latent.cosine_loss,
        {"pred": f64([[1.0, 2.0]] * 2), "target": f64([[1.0, 1.0]] * 2), "mask": [1, 1]},
        {"mask": "none"},
        signed="pred target",
    ),
    Case(
        visual_latent.parse_response,
        {"text": "a <latent/> <parser>b</parser> <answer>c</answer>", "pictures": 1},
    ),
    Case(visual_latent.answer_of, {"text": "It is <answer>c</answer>"}, {"text": "empty word"}),
    # Images and sounds
    Case(media.media_type_of, {"data": PNG}),
    Case(media.image_info, {"source": PNG}),
    Case(media.open_image, {"source": PNG}),
    Case(media.sound_info, {"source": WAV}),
    Case(media.read_sound, {"source": WAV, "rate": 8000}, {"rate": "none"}),
    Case(media.stream_sound, {"source": WAV, "seconds": 1.0, "rate": 8000}, {"rate": "none"}),
    Case(media.sound_picture, {"source": WAV, "columns": 2, "bands": 4}),
    Case(
        media.resample,
        {"samples": [0.0, 0.5], "rate": 8000, "to": 16000},
        {"samples": "short"},
        signed="samples",
    ),
    Case(
        media.encode_sound,
        {"samples": [0.0, 0.5], "rate": 8000},
        {"samples": "short"},
        signed="samples",
        shares="samples",
    ),
    Case(
        media.write_sound,
        {
            "path": f"{tempfile.gettempdir()}/burnish-public-case.wav",
            "samples": [0.0, 0.5],
            "rate": 8000,
        },
        {"samples": "short"},
        signed="samples",
        shares="samples",
    ),
    Case(
        speech.f0_track,
        {"samples": f64([0.1, -0.1] * 400), "sample_rate": 8000},
        {"samples": "short"},
        signed="samples",
    ),
    Case(
        speech.level_db,
        {"samples": f64([0.1, -0.1] * 400), "sample_rate": 8000},
        {"samples": "empty short"},
        signed="samples",
    ),
    Case(
        speech.measure_speech,
        {"samples": f64([0.1, -0.1] * 400), "sample_rate": 8000, "text": "Yes."},
        {"samples": "empty short", "text": "empty word"},
        signed="samples",
    ),
    Case(speech.syllables, {"text": "Yes."}, {"text": "empty word"}),
    Case(
        speech.read_caption,
        {"caption": "very slow", "dimension": "volume"},
        {"caption": "empty word", "dimension": "empty"},
    ),
    Case(
        speech.turn_taking, {"turns": [("A", 0.0, 1.0), ("B", 0.5, 2.0)]}, {"turns": "empty short"}
    ),
    Case(
        speech.meeting_distance,
        {"turns": [("A", 0.0, 1.0), ("B", 0.5, 2.0)]},
        {"turns": "empty short"},
    ),
    Case(speech.draft_scene, {"text": "Ann: Hello."}, {"text": "word", "name": "empty word"}),
    Case(speech.plan_scene, {"scene": long_speech.read_scene(SCRIPT), "seed": 1}),
    Case(
        speech.word_errors,
        {"said": "a b", "heard": "a"},
        {"said": "empty word", "heard": "empty word"},
    ),
    Case(
        speech.open_slots,
        {"scene": long_speech.read_scene(SCRIPT), "dimensions": ["tone", "pace"]},
        {"dimensions": "empty short"},
    ),
    Case(
        speech.plan_prompt,
        {
            "scene": long_speech.read_scene(SCRIPT),
            "instruction": "End sad.",
            "dimensions": ["tone", "pace"],
        },
        {"instruction": "empty word", "dimensions": "empty short"},
    ),
    Case(
        speech.read_plan,
        {"scene": long_speech.read_scene(SCRIPT), "text": 'sentences[0].pace = "slow"'},
        {"text": "empty"},
    ),
    Case(
        speech.design_voice,
        {
            "description": "an old woman",
            "taken": [speech.design_voice("a man")],
            "seed": 1,
        },
        {"description": "empty word", "taken": "empty short"},
    ),
    Case(
        masked_diffusion.token_nll,
        {"logits_BLV": LOGP[None], "ids_BL": torch.tensor([[1, 0]]), "mask_id": 0},
        signed="logits_BLV",
    ),
]
