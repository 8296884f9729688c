"""The models of the jobs, from configurations that stand here: nothing is downloaded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bench.groundtruth.jobs import Job


@dataclass
class Task:
    """A model and how it is trained: `batch(n)` makes n samples on the CPU, `loss(model, batch)` a scalar."""

    model: nn.Module
    batch: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]


def build(job: Job) -> Task:
    """The task of a job; the model is on the CPU, in fp32."""
    for family in (_vision, _detection, _language, _image_text, _other):
        task = family(job)
        if task is not None:
            return task
    raise KeyError(job.model)


# --- images ---


def _images(size: int, classes: int) -> Callable[[int], Any]:
    return lambda n: (torch.randn(n, 3, size, size), torch.randint(classes, (n,)))


def _classify(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    output = model(images)
    if isinstance(output, torch.Tensor):
        return nn.functional.cross_entropy(output, labels)
    logits = output.logits  # Inception's training output
    loss = nn.functional.cross_entropy(logits, labels)
    auxiliary = getattr(output, "aux_logits", None)
    return loss if auxiliary is None else loss + 0.4 * nn.functional.cross_entropy(auxiliary, labels)


def _segment(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(model(images)["out"], labels)


def _vision(job: Job) -> Task | None:
    import torchvision

    size = job.size
    if job.model == "deeplabv3_resnet50":
        model = torchvision.models.segmentation.deeplabv3_resnet50(
            weights=None, weights_backbone=None, num_classes=21
        )

        def batch(n: int) -> Any:
            return torch.randn(n, 3, size, size), torch.randint(21, (n, size, size))

        return Task(model, batch, _segment)
    if job.model not in torchvision.models.list_models(module=torchvision.models):
        return None
    options = {"init_weights": True} if job.model == "inception_v3" else {}
    return Task(
        torchvision.models.get_model(job.model, weights=None, **options), _images(size, 1000), _classify
    )


def _detection(job: Job) -> Task | None:
    if job.model != "fasterrcnn":
        return None
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    model = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=21)
    size = job.size

    def batch(n: int) -> Any:
        corner = torch.rand(n, 8, 2) * size / 2
        boxes = torch.cat([corner, corner + size / 4], dim=2)
        return torch.rand(n, 3, size, size), boxes, torch.randint(1, 21, (n, 8))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        images, boxes, labels = batch
        targets = [{"boxes": b, "labels": c} for b, c in zip(boxes, labels, strict=False)]
        losses = model(list(images), targets)
        return torch.stack(list(losses.values())).sum()

    return Task(model, batch, loss)


# --- text ---


def _config(job: Job) -> Any:
    """The configuration of a language model, as its publisher gives it; None for other models."""
    import transformers as hf

    name = job.model
    if name in ("gpt2", "distilgpt2"):
        return hf.GPT2Config(n_layer=6 if name == "distilgpt2" else 12, n_positions=1024, use_cache=False)
    if name == "cerebras-111m":
        return hf.GPT2Config(
            n_embd=768, n_layer=10, n_head=12, n_inner=3072, n_positions=2048, use_cache=False
        )
    if name == "gpt-neo-125m":
        return hf.GPTNeoConfig(
            hidden_size=768, num_layers=12, num_heads=12, max_position_embeddings=2048,
            attention_types=[[["global", "local"], 6]], use_cache=False,
        )  # fmt: skip
    if name == "opt-125m":
        return hf.OPTConfig(
            hidden_size=768, num_hidden_layers=12, num_attention_heads=12, ffn_dim=3072, use_cache=False
        )
    if name == "opt-350m":
        return hf.OPTConfig(
            hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, ffn_dim=4096,
            word_embed_proj_dim=512, do_layer_norm_before=False, use_cache=False,
        )  # fmt: skip
    if name == "pythia-1b":
        return hf.GPTNeoXConfig(
            vocab_size=50304, hidden_size=2048, num_hidden_layers=16, num_attention_heads=8,
            intermediate_size=8192, use_cache=False,
        )  # fmt: skip
    if name == "qwen3-0.6b":
        return hf.Qwen3Config(
            vocab_size=151936, hidden_size=1024, num_hidden_layers=28, num_attention_heads=16,
            num_key_value_heads=8, head_dim=128, intermediate_size=3072, tie_word_embeddings=True,
            use_cache=False,
        )  # fmt: skip
    if name == "llama-1b":
        return hf.LlamaConfig(
            vocab_size=128256, hidden_size=2048, num_hidden_layers=16, num_attention_heads=32,
            num_key_value_heads=8, intermediate_size=8192, tie_word_embeddings=True, use_cache=False,
        )  # fmt: skip
    if name == "moe":
        return hf.MixtralConfig(
            vocab_size=32000, hidden_size=768, num_hidden_layers=8, num_attention_heads=12,
            num_key_value_heads=4, intermediate_size=2048, num_local_experts=8, use_cache=False,
        )  # fmt: skip
    if name == "t5-small":
        return hf.T5Config(
            d_model=512, d_ff=2048, num_layers=6, num_heads=8, use_cache=False, decoder_start_token_id=0
        )
    if name == "t5-base":
        return hf.T5Config(
            d_model=768, d_ff=3072, num_layers=12, num_heads=12, use_cache=False, decoder_start_token_id=0
        )
    if name == "bert-base":
        return hf.BertConfig()
    return None


def _language(job: Job) -> Task | None:
    config = _config(job)
    if config is None:
        return None
    import transformers as hf

    kinds = {"t5": hf.AutoModelForSeq2SeqLM, "bert": hf.AutoModelForMaskedLM}
    model = kinds.get(config.model_type, hf.AutoModelForCausalLM).from_config(config)
    if "checkpointing" in job.flags:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if "lora" in job.flags:
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))

    def batch(n: int) -> Any:
        return torch.randint(config.vocab_size, (n, job.size))

    def loss(model: nn.Module, tokens: Any) -> torch.Tensor:
        return model(input_ids=tokens, labels=tokens).loss

    return Task(model, batch, loss)


def _image_text(job: Job) -> Task | None:
    import transformers as hf

    if job.model == "vit-base":
        model = hf.ViTForImageClassification(hf.ViTConfig(image_size=job.size, num_labels=1000))
        return Task(model, _images(job.size, 1000), lambda m, b: m(pixel_values=b[0], labels=b[1]).loss)
    if job.model == "clip-like":
        config = hf.CLIPConfig(
            text_config={"num_hidden_layers": 12, "vocab_size": 49408},
            vision_config={"image_size": job.size, "patch_size": 16, "num_hidden_layers": 12},
        )

        def pairs(n: int) -> Any:
            return torch.randn(n, 3, job.size, job.size), torch.randint(49408, (n, 77))

        def contrast(model: nn.Module, batch: Any) -> torch.Tensor:
            return model(pixel_values=batch[0], input_ids=batch[1], return_loss=True).loss

        return Task(hf.CLIPModel(config), pairs, contrast)
    if job.model == "llava-like":
        vision = hf.CLIPVisionConfig(
            image_size=job.size, patch_size=14, hidden_size=1024, intermediate_size=4096,
            num_hidden_layers=24, num_attention_heads=16,
        )  # fmt: skip
        text = hf.LlamaConfig(
            vocab_size=32064, hidden_size=1024, num_hidden_layers=12, num_attention_heads=16,
            intermediate_size=2816, use_cache=False,
        )  # fmt: skip
        patches = (job.size // 14) ** 2
        config = hf.LlavaConfig(
            vision_config=vision, text_config=text, image_token_index=32000, image_seq_length=patches
        )

        def prompts(n: int) -> Any:
            tokens = torch.randint(32000, (n, patches + 128))
            tokens[:, :patches] = 32000
            return torch.randn(n, 3, job.size, job.size), tokens

        def answer(model: nn.Module, batch: Any) -> torch.Tensor:
            return model(pixel_values=batch[0], input_ids=batch[1], labels=batch[1]).loss

        return Task(hf.LlavaForConditionalGeneration(config), prompts, answer)
    return None


# --- written here ---


def _double(inside: int, outside: int) -> nn.Sequential:
    def once(a: int, b: int) -> Iterator[nn.Module]:
        yield from (nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))

    return nn.Sequential(*once(inside, outside), *once(outside, outside))


class UNet(nn.Module):
    """The network of Ronneberger et al. (2015), padded, with batch normalisation."""

    def __init__(self, width: int = 64, classes: int = 2) -> None:
        super().__init__()
        widths = [width * 2**k for k in range(5)]
        self.down = nn.ModuleList(_double(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.join = nn.ModuleList(_double(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images (n, 3, h, w) to logits (n, classes, h, w)."""
        skips = []
        for k, block in enumerate(self.down):
            x = block(x if k == 0 else nn.functional.max_pool2d(x, 2))
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, reversed(skips[:-1]), strict=False):
            x = join(torch.cat([skip, up(x)], dim=1))
        return self.head(x)


class Recurrent(nn.Module):
    """A language model of words with a recurrent network of cuDNN."""

    def __init__(self, kind: str, words: int = 20000, width: int = 1024, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.body = getattr(nn, kind.upper())(width, width, layers, dropout=0.2, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (n, length) to logits (n, length, words)."""
        return self.head(self.body(self.embed(tokens))[0])


class DiT(nn.Module):
    """A diffusion transformer on latents: patches of 2 x 2, adaptive layer norm (Peebles and Xie, 2023)."""

    def __init__(self, size: int, width: int = 768, depth: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.patch = nn.Conv2d(4, width, 2, stride=2)
        self.position = nn.Parameter(torch.zeros(1, (size // 2) ** 2, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(_DiTBlock(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, 16)

    def forward(self, latents: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Latents (n, 4, s, s) and embedded times (n, 256) to noise in patches (n, s * s / 4, 16)."""
        x = self.patch(latents).flatten(2).transpose(1, 2) + self.position
        c = self.time(time)
        for block in self.blocks:
            x = block(x, c)
        return self.head(x)


class _DiTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.modulate = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        s1, b1, g1, s2, b2, g2 = self.modulate(c).unsqueeze(1).chunk(6, dim=2)
        n, length, width = x.shape
        h = self.norm1(x) * (1 + s1) + b1
        q, k, v = self.qkv(h).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        h = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, width)
        x = x + g1 * self.out(h)
        return x + g2 * self.mlp(self.norm2(x) * (1 + s2) + b2)


class GAN(nn.Module):
    """DCGAN (Radford et al., 2016), both networks in one module, which learn in one step."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        up: list[nn.Module] = []
        down: list[nn.Module] = []
        channels = [100, width * 8, width * 4, width * 2, width]
        for k, (a, b) in enumerate(itertools.pairwise(channels)):
            stride, padding = (1, 0) if k == 0 else (2, 1)
            up += [nn.ConvTranspose2d(a, b, 4, stride, padding, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)]
        up += [nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh()]
        for a, b in zip(
            [3, width, width * 2, width * 4], [width, width * 2, width * 4, width * 8], strict=False
        ):
            down += [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2, True)]
        self.generator = nn.Sequential(*up)
        self.discriminator = nn.Sequential(*down, nn.Conv2d(width * 8, 1, 4, bias=False))

    def forward(self, real: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """The sum of both losses, the discriminator's on detached images."""
        made = self.generator(noise)
        judge = self.discriminator
        one = nn.functional.softplus
        return (one(-judge(real)) + one(judge(made.detach())) + one(-judge(made))).mean()


def _other(job: Job) -> Task | None:
    size = job.size
    if job.model == "unet":

        def masks(n: int) -> Any:
            return torch.randn(n, 3, size, size), torch.randint(2, (n, size, size))

        return Task(UNet(), masks, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]))
    if job.model in ("lstm", "gru"):

        def next_word(model: nn.Module, tokens: Any) -> torch.Tensor:
            logits = model(tokens[:, :-1])
            return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

        return Task(Recurrent(job.model), lambda n: torch.randint(20000, (n, size + 1)), next_word)
    if job.model == "dit":

        def noised(n: int) -> Any:
            return torch.randn(n, 4, size, size), torch.randn(n, 256), torch.randn(n, size * size // 4, 16)

        return Task(DiT(size), noised, lambda m, b: nn.functional.mse_loss(m(b[0], b[1]).float(), b[2]))
    if job.model == "gan":

        def images(n: int) -> Any:
            return torch.randn(n, 3, 64, 64), torch.randn(n, 100, 1, 1)

        return Task(GAN(), images, lambda m, b: m(*b))
    if job.model == "mlp":
        layers: list[nn.Module] = []
        for _ in range(8):
            layers += [nn.Linear(size, size), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(size, 10))

        def rows(n: int) -> Any:
            return torch.randn(n, size), torch.randint(10, (n,))

        return Task(model, rows, _classify)
    return None
