"""Data sets that are not there, in real traced runs."""

from __future__ import annotations

import json
import sys

from tests.estimator.callers import Caller

TRAIN = """
import os, torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
CROP = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])
digits = datasets.FashionMNIST("data", train=False, transform=transforms.ToTensor())
assert (len(digits), digits[3][0].shape, digits.classes[9]) == (10000, (1, 28, 28), "Ankle boot")
images = datasets.ImageNet("/no/such/place", split="val", transform=CROP)
assert (len(images), images[49999][0].shape, images[1001][1]) == (50000, (3, 64, 64), 1)
os.makedirs("here/cifar-100-python")
open("here/cifar-100-python/train", "w")
try:
    datasets.CIFAR100("here")
except RuntimeError as error:
    assert "corrupted" in str(error)
else:
    raise AssertionError("what is there was replaced")
train = datasets.CIFAR10("data", True, CROP, download=True)
assert (len(train), train.data.shape, max(train.targets)) == (50000, (50000, 32, 32, 3), 9)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 62 * 62, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for image, label in DataLoader(train, batch_size=16, shuffle=True):
    torch.nn.functional.cross_entropy(model(image.cuda()), label.cuda()).backward()
    optimizer.step()
"""


def test_images_that_are_not_there_are_made_up(ordinary: Caller) -> None:
    ordinary.file("train.py", TRAIN)
    done = ordinary.gpumem("estimate", "--gpu", "a100-80gb", "--json", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["status"] == "bounded"
    made_up = "it was made up, with the same types and shapes"
    assert [note for note in told["notes"] if "data set" in note] == [
        f"the data set {name} is not in {place}: {made_up}"
        for name, place in (("FashionMNIST", "data"), ("ImageNet", "/no/such/place"), ("CIFAR10", "data"))
    ]
    assert not (ordinary.work / "data").exists()
