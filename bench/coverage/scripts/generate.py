"""Inference without a backward pass: text generation with a KV cache, scoring, and a diffusion sampling loop."""

import argparse

import torch
from transformers import AutoModelForCausalLM, LlamaConfig


def llama():
    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=8,
        vocab_size=32000,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).cuda().eval()


def generate(**how) -> None:
    model = llama()
    prompt = torch.randint(5, 32000, (4, 128)).cuda()
    for _ in range(2):
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=32, **how)
        print(tuple(out.shape))


def greedy() -> None:
    generate(do_sample=False)


def sampling() -> None:
    generate(do_sample=True, temperature=0.8, top_k=50, top_p=0.95)


def beam() -> None:
    generate(num_beams=4, do_sample=False)


def static_cache() -> None:
    generate(do_sample=False, cache_implementation="static", disable_compile=True)


def own_loop() -> None:
    """The cache carried by hand from token to token."""
    model = llama()
    tokens, cache = torch.randint(5, 32000, (4, 128)).cuda(), None
    with torch.inference_mode():
        for _ in range(64):
            out = model(input_ids=tokens, past_key_values=cache, use_cache=True)
            tokens, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
    print(cache.get_seq_length())


def scoring() -> None:
    """The likelihood of many texts in batches, as evaluation harnesses do."""
    model = llama()
    data = torch.utils.data.DataLoader(torch.randint(5, 32000, (64, 512)), batch_size=8)
    total, count = 0.0, 0
    with torch.inference_mode():
        for tokens in data:
            tokens = tokens.cuda()
            logits = model(input_ids=tokens).logits[:, :-1].float()
            logp = torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
            total += logp.sum().item()
            count += logp.numel()
    print("perplexity", torch.tensor(-total / count).exp().item())


def unet() -> None:
    """A diffusion model's sampling loop with classifier-free guidance (diffusers, from a configuration)."""
    from diffusers import DDIMScheduler, UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=64,
        block_out_channels=(128, 256, 512, 512),
        layers_per_block=1,
        cross_attention_dim=512,
        attention_head_dim=8,
    )
    model = model.to("cuda", torch.float16).eval()
    scheduler = DDIMScheduler()
    scheduler.set_timesteps(10)
    text = torch.randn(4, 77, 512, device="cuda", dtype=torch.float16)
    latents = torch.randn(2, 4, 64, 64, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        for t in scheduler.timesteps:
            noise = model(torch.cat([latents] * 2), t, encoder_hidden_states=text).sample
            without, conditioned = noise.chunk(2)
            latents = scheduler.step(without + 7.5 * (conditioned - without), t, latents).prev_sample
    print(latents.std().item())


def dit() -> None:
    """A diffusion transformer's sampling loop and a VAE's decoder."""
    from diffusers import AutoencoderKL, DDIMScheduler, DiTTransformer2DModel

    model = DiTTransformer2DModel(num_attention_heads=8, attention_head_dim=64, num_layers=6, sample_size=32)
    model = model.to("cuda", torch.bfloat16).eval()
    decoder = AutoencoderKL(
        block_out_channels=(64, 128, 256),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        latent_channels=4,
    )
    decoder = decoder.to("cuda", torch.bfloat16).eval()
    scheduler = DDIMScheduler()
    scheduler.set_timesteps(10)
    latents = torch.randn(8, 4, 32, 32, device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(0, 1000, (8,), device="cuda")
    with torch.inference_mode():
        for t in scheduler.timesteps:
            noise = model(latents, timestep=t.expand(8).cuda(), class_labels=labels).sample
            latents = scheduler.step(noise, t, latents).prev_sample
        print(tuple(decoder.decode(latents).sample.shape))


def images() -> None:
    """Batches of images through a vision transformer in half precision."""
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(num_labels=1000)).cuda().half().eval()
    right = 0
    with torch.inference_mode(), torch.autocast("cuda", dtype=torch.float16):
        for _ in range(4):
            batch = torch.randn(64, 3, 224, 224, dtype=torch.float16).cuda(non_blocking=True)
            right += int((model(batch).logits.argmax(-1) == 0).sum())
    print(right)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    tasks = (greedy, sampling, beam, static_cache, own_loop, scoring, unet, dit, images)
    parser.add_argument("task", choices=[task.__name__ for task in tasks])
    globals()[parser.parse_args().task]()
