"""A GGUF file as a Hugging Face folder in bfloat16.

python -m lab.judges.convert FILE.gguf FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(file: Path, folder: Path) -> None:
    """Write dense weights, config and tokenizer; transformers would keep the quantiser otherwise."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Newer versions leave the weights packed unless they are told not to.
    packed = getattr(transformers, "GgufConfig", None)
    dense = {} if packed is None else {"quantization_config": packed(dequantize=True)}
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.bfloat16, **dense
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
