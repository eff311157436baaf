"""Makes a tiny model's weights: small random numbers from a fixed seed, 7 MB, not committed.

Usage: ``make_weights.py [DIRECTORY]``; without one, the model beside this file.
"""

import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent


def main() -> None:
    """Writes ``model.safetensors`` beside the model's config and nothing else."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(directory)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    # Saved by transformers, which gives every weight the name that checkpoints have.
    with tempfile.TemporaryDirectory(dir=directory) as saved:
        model.save_pretrained(saved)
        (Path(saved) / "model.safetensors").replace(directory / "model.safetensors")


if __name__ == "__main__":
    main()
