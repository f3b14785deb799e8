"""A GGUF file as the safetensors folder that transformers and vLLM want: `python gguf_to_folder.py MODEL.gguf FOLDER`.

Runs where torch, transformers and gguf are installed. Weights become bfloat16, so that every peer of a comparison
reads the same numbers, whatever the file stored.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    named = {"gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.bfloat16, **named)
    model.hf_quantizer = None  # the weights are whole numbers now; transformers still remembers where they came from
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, **named).save_pretrained(folder)


if __name__ == "__main__":
    main()
