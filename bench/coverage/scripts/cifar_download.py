"""A ResNet on CIFAR10, which torchvision downloads."""

import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision import transforms

transform = transforms.Compose(
    [transforms.RandomCrop(32, padding=4), transforms.ToTensor(), transforms.Normalize((0.5,), (0.5,))]
)
train = torchvision.datasets.CIFAR10("data", train=True, transform=transform, download=True)
model = torchvision.models.resnet18(num_classes=10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for images, labels in DataLoader(train, batch_size=128, shuffle=True):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda()).backward()
    optimizer.step()
