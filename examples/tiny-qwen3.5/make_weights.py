"""Makes the tiny model's weights: small random numbers from a fixed seed, 7 MB, not committed."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent


def main() -> None:
    """Writes ``model.safetensors`` beside this file and nothing else."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(HERE)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    partial = HERE / "model.safetensors.partial"
    save_file(model.state_dict(), partial, metadata={"format": "pt"})
    partial.replace(HERE / "model.safetensors")


if __name__ == "__main__":
    main()
