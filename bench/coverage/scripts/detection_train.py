"""Fine-tunes a detector of torchvision on made-up images with boxes, and evaluates it."""

import argparse

import torch
import torchvision


def sample(size, masks):
    count = int(torch.randint(1, 8, ()))
    corner = torch.rand(count, 2) * size * 0.5
    boxes = torch.cat([corner, corner + 10 + torch.rand(count, 2) * size * 0.3], dim=1)
    target = {"boxes": boxes, "labels": torch.randint(1, 91, (count,))}
    if masks:
        target["masks"] = torch.zeros(count, size, size, dtype=torch.uint8)
    return torch.rand(3, size, size), target


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="fasterrcnn_resnet50_fpn")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--size", type=int, default=512)
    args = parser.parse_args()

    device = torch.device("cuda")
    model = torchvision.models.get_model(args.model, weights=None, weights_backbone=None).to(device)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.005, momentum=0.9)
    data = [sample(args.size, "mask" in args.model) for _ in range(8 * args.batch_size)]
    loader = torch.utils.data.DataLoader(
        data, batch_size=args.batch_size, collate_fn=lambda batch: tuple(zip(*batch))
    )
    model.train()
    for images, targets in loader:
        images = [image.to(device) for image in images]
        targets = [{name: value.to(device) for name, value in target.items()} for target in targets]
        losses = model(images, targets)
        loss = sum(losses.values())
        if not torch.isfinite(loss):
            raise SystemExit(f"loss is {loss.item()}: stopping")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print({name: round(value.item(), 3) for name, value in losses.items()}, flush=True)
    model.eval()
    with torch.inference_mode():
        found = model([image.to(device) for image in images])
    print([len(one["boxes"]) for one in found], found[0]["labels"][:3].tolist())


if __name__ == "__main__":
    main()
