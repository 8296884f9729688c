"""Trains one of four models on made-up data: `train.py MODEL [--device cuda] [--steps 2]`."""

import argparse

import torch


def build(name, device):
    """The model on `device`, its optimizer, and a function that makes the loss of one batch."""
    if name in ("resnet50", "mobilenet_v2"):
        from torchvision import models

        batch = {"resnet50": 8, "mobilenet_v2": 16}[name]
        with torch.device(device):
            model = models.get_model(name)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def loss():
            images = torch.randn(batch, 3, 224, 224).to(device)
            labels = torch.randint(0, 1000, (batch,)).to(device)
            return torch.nn.functional.cross_entropy(model(images), labels)

    else:
        import transformers

        if name == "gpt2":
            config = transformers.GPT2Config(use_cache=False)
            with torch.device(device):
                model = transformers.GPT2LMHeadModel(config)
            shape = (2, 256)
        else:
            config = transformers.BertConfig()
            with torch.device(device):
                model = transformers.BertForMaskedLM(config)
            shape = (4, 128)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def loss():
            tokens = torch.randint(0, config.vocab_size, shape).to(device)
            return model(input_ids=tokens, labels=tokens).loss

    model.train()
    return model, optimizer, loss


def steps(optimizer, loss, count):
    for _ in range(count):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["gpt2", "bert", "resnet50", "mobilenet_v2"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    model, optimizer, loss = build(options.model, options.device)
    steps(optimizer, loss, options.steps)
    if options.device == "cuda":
        print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
