"""Fine-tuning a small Llama with PEFT: LoRA, DoRA, or QLoRA over a model in 4 or 8 bits (bitsandbytes)."""

import argparse
import tempfile

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig

CONFIG = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=4,
    num_attention_heads=16,
    num_key_value_heads=8,
    vocab_size=32000,
)


def quantised(bits: int):
    """The model as it is loaded from a checkpoint."""
    how = BitsAndBytesConfig(
        load_in_4bit=bits == 4,
        load_in_8bit=bits == 8,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(CONFIG, dtype=torch.bfloat16).save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=how, device_map={"": 0}, dtype=torch.bfloat16
        )
    return prepare_model_for_kbit_training(model)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bits", type=int, choices=[4, 8, 16], default=16)
    parser.add_argument("--dora", action="store_true")
    parser.add_argument("--optim", default="adamw")
    options = parser.parse_args()
    if options.bits == 16:
        model = AutoModelForCausalLM.from_config(CONFIG, dtype=torch.bfloat16).cuda()
    else:
        model = quantised(options.bits)
    adapter = LoraConfig(
        r=16,
        lora_alpha=32,
        lora_dropout=0.05,
        use_dora=options.dora,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, adapter)
    model.print_trainable_parameters()
    trained = [p for p in model.parameters() if p.requires_grad]
    if options.optim == "adamw":
        optimizer = torch.optim.AdamW(trained, lr=1e-4)
    else:
        import bitsandbytes

        optimizer = getattr(bitsandbytes.optim, options.optim)(trained, lr=1e-4)
    for step in range(8):
        tokens = torch.randint(0, CONFIG.vocab_size, (4, 256), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
