"""Trains a model of transformers from its configuration, without its weights, in a plain loop on made-up data."""

import argparse
import contextlib

import torch
import transformers
from transformers import get_cosine_schedule_with_warmup

IMAGE_TOKEN = 5  # in the vocabulary of LLaVA's text model


def gpt2(size):
    tiny = {"n_layer": 2, "n_embd": 128, "n_head": 2} if size == "tiny" else {}
    config = transformers.GPT2Config(**tiny)
    return transformers.GPT2LMHeadModel(config), text(config.vocab_size)


def llama(size):
    if size == "tiny":
        shape = {
            "hidden_size": 256,
            "intermediate_size": 688,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 32000,
        }
    else:  # as Llama 3.2 1B
        shape = {
            "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
            "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True,
        }  # fmt: skip
    config = transformers.LlamaConfig(**shape, max_position_embeddings=8192)
    return transformers.LlamaForCausalLM(config), text(config.vocab_size)


def mixtral(size):
    if size == "tiny":
        shape = {
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_local_experts": 4,
        }
    else:
        shape = {
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 12,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "num_local_experts": 8,
        }
    config = transformers.MixtralConfig(**shape, num_experts_per_tok=2, output_router_logits=True)
    return transformers.MixtralForCausalLM(config), text(config.vocab_size)


def bert(size):
    tiny = (
        {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
        if size == "tiny"
        else {}
    )
    config = transformers.BertConfig(**tiny)

    def batch(count, length):
        """Masked language modelling: 15 % of the tokens are asked for."""
        tokens = torch.randint(1000, config.vocab_size, (count, length))
        asked = torch.rand(tokens.shape) < 0.15
        return {
            "input_ids": tokens.masked_fill(asked, 103),
            "attention_mask": torch.ones_like(tokens),
            "labels": tokens.masked_fill(~asked, -100),
        }

    return transformers.BertForMaskedLM(config), batch


def t5(size):
    shape = (
        {"d_model": 128, "d_ff": 256, "num_layers": 2, "num_heads": 2}
        if size == "tiny"
        else {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
    )
    config = transformers.T5Config(**shape, decoder_start_token_id=0)

    def batch(count, length):
        source, target = (torch.randint(config.vocab_size, (count, n)) for n in (length, length // 4))
        return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": target}

    return transformers.T5ForConditionalGeneration(config), batch


def vit(size):
    tiny = (
        {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 768}
        if size == "tiny"
        else {}
    )
    config = transformers.ViTConfig(**tiny, num_labels=1000)

    def batch(count, length):
        return {"pixel_values": torch.rand(count, 3, 224, 224), "labels": torch.randint(1000, (count,))}

    return transformers.ViTForImageClassification(config), batch


def clip(size):
    config = transformers.CLIPConfig()
    if size == "tiny":
        shape = {
            "hidden_size": 128,
            "intermediate_size": 512,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
        }
        config = transformers.CLIPConfig(text_config=shape, vision_config=shape, projection_dim=64)

    def batch(count, length):
        tokens = torch.randint(1000, 49000, (count, 77))
        return {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "pixel_values": torch.rand(count, 3, 224, 224),
            "return_loss": True,
        }

    return transformers.CLIPModel(config), batch


def llava(size):
    if size == "tiny":
        vision = {
            "hidden_size": 128,
            "intermediate_size": 512,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 112,
            "patch_size": 14,
        }
        language = {
            "hidden_size": 128,
            "intermediate_size": 344,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "vocab_size": 32064,
        }
    else:  # the image encoder of LLaVA 1.5 and a language model of 1.1 billion parameters
        vision = {
            "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
            "image_size": 336, "patch_size": 14, "projection_dim": 768,
        }  # fmt: skip
        language = {
            "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
            "num_key_value_heads": 4, "vocab_size": 32064,
        }  # fmt: skip
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**vision),
        text_config=transformers.LlamaConfig(**language, max_position_embeddings=4096),
        image_token_id=IMAGE_TOKEN,
    )
    side = vision["image_size"]
    patches = (side // vision["patch_size"]) ** 2
    model = transformers.LlavaForConditionalGeneration(config)
    model.model.vision_tower.requires_grad_(False)

    def batch(count, length):
        words = torch.randint(10, 32000, (count, length))
        tokens = torch.cat([torch.full((count, patches), IMAGE_TOKEN), words], dim=1)
        return {
            "input_ids": tokens, "attention_mask": torch.ones_like(tokens), "pixel_values": torch.rand(count, 3, side, side),
            "labels": tokens.masked_fill(tokens == IMAGE_TOKEN, -100),
        }  # fmt: skip

    return model, batch


def text(words):
    def batch(count, length):
        tokens = torch.randint(words, (count, length))
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}

    return batch


FAMILIES = {
    "gpt2": gpt2,
    "llama": llama,
    "mixtral": mixtral,
    "bert": bert,
    "t5": t5,
    "vit": vit,
    "clip": clip,
    "llava": llava,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--size", choices=("tiny", "real"), default="tiny")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--precision", choices=("fp32", "amp", "bf16"), default="amp")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    torch.set_default_dtype(torch.bfloat16 if args.precision == "bf16" else torch.float32)
    model, batch = FAMILIES[args.family](args.size)
    torch.set_default_dtype(torch.float32)
    model.to("cuda")
    if args.checkpointing:
        model.gradient_checkpointing_enable()
        model.config.use_cache = False
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    print(f"{sum(p.numel() for p in trained):,} of {model.num_parameters():,} parameters are trained")
    optimizer = torch.optim.AdamW(trained, lr=5e-5, weight_decay=0.01)
    steps = 100
    scheduler = get_cosine_schedule_with_warmup(optimizer, 10, steps * args.epochs)
    autocast = contextlib.nullcontext()
    if args.precision == "amp":
        autocast = torch.autocast("cuda", dtype=torch.bfloat16)
    dtype = next(model.parameters()).dtype

    def on_gpu(inputs):
        moved = {name: value.cuda() if torch.is_tensor(value) else value for name, value in inputs.items()}
        return {name: value.to(dtype) if name == "pixel_values" else value for name, value in moved.items()}

    for epoch in range(args.epochs):
        model.train()
        for step in range(steps):
            with autocast:
                loss = model(**on_gpu(batch(args.batch_size, args.length))).loss
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if step % 10 == 0:
                print(
                    f"epoch {epoch} step {step}: loss {loss.item():.4f}, gradient norm {norm.item():.3f}",
                    flush=True,
                )
        model.eval()
        with torch.no_grad(), autocast:
            losses = [model(**on_gpu(batch(args.batch_size, args.length))).loss.item() for _ in range(4)]
        print(f"epoch {epoch}: validation loss {sum(losses) / len(losses):.4f}")
        model.save_pretrained(f"checkpoint-{epoch}")


if __name__ == "__main__":
    main()
