"""Public data sets that are not on this machine are made up: of the same types and shapes, with no content.

A dry run has no network, so what a job would download is missing. Only data sets whose form is known are made
up, and only where there is nothing of them; the estimate tells of each.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from typing import Any, Callable, Dict, List, Optional, Tuple

from .inputs import is_installed
from .torch_import import when_module_loads

MOST_ROWS = 2048  # of a table: what a program does to each row first takes its time
LONG_ROWS = 4  # one row of so many is of the greatest length, the others of a quarter of that
UNREACHABLE = ("ConnectionError", "OfflineModeIsEnabled", "DatasetNotFoundError", "FileNotFoundError")

CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
IMAGENET_CLASSES = 1000
IMAGENET_SIZE = (500, 375)  # width and height of a usual image; its transforms make them equal anyway

# --- how tables of the Hugging Face Hub look: a column is a text of so many characters, a number, a label of
# so many classes (negative), or an image; rows by split

_TEXTS: Dict[str, Tuple[Dict[str, Any], Dict[str, int]]] = {
    "imdb": ({"text": 14000, "label": -2}, {"train": 25000, "test": 25000, "unsupervised": 50000}),
    "wikitext": ({"text": 1000}, {"train": 36718, "validation": 3760, "test": 4358}),
    "ag_news": ({"text": 1100, "label": -4}, {"train": 120000, "test": 7600}),
    "alpaca": (
        {"instruction": 500, "input": 2500, "output": 4200, "text": 4500},
        {"train": 52002},
    ),
    "glue/cola": (
        {"sentence": 250, "label": -2, "idx": 0},
        {"train": 8551, "validation": 1043, "test": 1063},
    ),
    "glue/sst2": (
        {"sentence": 280, "label": -2, "idx": 0},
        {"train": 67349, "validation": 872, "test": 1821},
    ),
    "glue/mrpc": (
        {"sentence1": 250, "sentence2": 250, "label": -2, "idx": 0},
        {"train": 3668, "validation": 408, "test": 1725},
    ),
    "glue/rte": (
        {"sentence1": 1500, "sentence2": 500, "label": -2, "idx": 0},
        {"train": 2490, "validation": 277, "test": 3000},
    ),
    "glue/qnli": (
        {"question": 500, "sentence": 1500, "label": -2, "idx": 0},
        {"train": 104743, "validation": 5463, "test": 5463},
    ),
    "glue/mnli": (
        {"premise": 2000, "hypothesis": 500, "label": -3, "idx": 0},
        {
            "train": 392702,
            "validation_matched": 9815,
            "validation_mismatched": 9832,
            "test_matched": 9796,
            "test_mismatched": 9847,
        },
    ),
    "squad": (
        {"id": 24, "title": 40, "context": 4000, "question": 300, "answers": "answers"},
        {"train": 87599, "validation": 10570},
    ),
    "cifar10": ({"img": (32, 32, "RGB"), "label": -10}, {"train": 50000, "test": 10000}),
    "mnist": ({"image": (28, 28, "L"), "label": -10}, {"train": 60000, "test": 10000}),
    "fashion_mnist": ({"image": (28, 28, "L"), "label": -10}, {"train": 60000, "test": 10000}),
}


class MadeUp:
    """The data sets of this process that were made up."""

    def __init__(self) -> None:
        self._told: List[str] = []

    def watch(self) -> None:
        """Stands in for what is missing, once the libraries are imported."""
        when_module_loads("torchvision.datasets.cifar", self._cifar)
        when_module_loads("torchvision.datasets.mnist", self._mnist)
        when_module_loads("torchvision.datasets.imagenet", self._imagenet)
        when_module_loads("datasets", self._hub)

    def listed(self) -> List[str]:
        """One sentence for each."""
        return self._told[:20]

    def _tell(self, name: str, where: str, alike: str = "types and shapes") -> None:
        text = "the data set %s is not %s: it was made up, with the same %s" % (name, where, alike)
        if text not in self._told:
            self._told.append(text)

    # --- torchvision ---

    def _cifar(self, module: Any) -> None:
        def make(self: Any, given: Dict[str, Any]) -> None:
            import numpy

            count = 50000 if self.train else 10000
            classes = CIFAR10 if self.base_folder == "cifar-10-batches-py" else list(map(str, range(100)))
            self.data = numpy.resize(numpy.arange(251, dtype=numpy.uint8), (count, 32, 32, 3))
            self.targets = [index % len(classes) for index in range(count)]
            self.classes = classes
            self.class_to_idx = {name: index for index, name in enumerate(classes)}

        def place(self: Any) -> str:
            return str(os.path.join(self.root, self.base_folder))

        self._replace(module.CIFAR10, place, make)

    def _mnist(self, module: Any) -> None:
        def make(self: Any, given: Dict[str, Any]) -> None:
            import torch

            count = 60000 if self.train else 10000
            pixels = torch.arange(251, dtype=torch.uint8).repeat(count * 28 * 28 // 251 + 1)
            self.data = pixels[: count * 28 * 28].reshape(count, 28, 28)
            self.targets = torch.arange(count) % 10

        def place(self: Any) -> Optional[str]:
            names = [each.__name__ for each in type(self).__mro__]
            if "EMNIST" in names or "QMNIST" in names or os.path.exists(self.processed_folder):
                return None
            return str(self.raw_folder)

        self._replace(module.MNIST, place, make)

    def _imagenet(self, module: Any) -> None:
        def make(self: Any, given: Dict[str, Any]) -> None:
            from PIL import Image

            if "loader" in given:
                raise NotImplementedError("images of another kind")
            blank = Image.new("RGB", IMAGENET_SIZE)
            self.split = given.get("split", "train")
            count = 1281167 if self.split == "train" else 50000
            self.loader, self.extensions = lambda path: blank.copy(), None
            self.wnids = ["n%08d" % index for index in range(IMAGENET_CLASSES)]
            self.wnid_to_idx = {name: index for index, name in enumerate(self.wnids)}
            self.classes = [(name,) for name in self.wnids]
            self.class_to_idx = {name[0]: index for index, name in enumerate(self.classes)}
            self.samples = self.imgs = Samples(count)
            self.targets = [index % IMAGENET_CLASSES for index in range(count)]

        self._replace(module.ImageNet, lambda self: str(self.root), make)

    def _replace(
        self, kind: Any, place: Callable[[Any], Optional[str]], make: Callable[[Any, Dict[str, Any]], None]
    ) -> None:
        """Has `kind` made by `make` where nothing is at its place (None: leave it alone)."""
        construct = kind.__init__
        base = next(each for each in kind.__mro__ if each.__name__ == "VisionDataset")
        signature = inspect.signature(construct)

        @functools.wraps(construct)
        def __init__(this: Any, *arguments: Any, **options: Any) -> None:
            try:
                bound = signature.bind(this, *arguments, **options)
                bound.apply_defaults()
                given = dict(bound.arguments)
                given.update(given.pop("kwargs", {}))
                transforms = {
                    name: given[name] for name in ("transform", "target_transform") if name in given
                }
                base.__init__(this, given["root"], **transforms)
                if "train" in given:
                    this.train = given["train"]
                where = place(this)
                is_missing = where is not None and not (os.path.isdir(where) and os.listdir(where))
                if is_missing:
                    make(this, given)
                    self._tell(type(this).__name__, "in %s" % given["root"])
            except Exception:  # of another version: it says itself what is wrong
                is_missing = False
            if not is_missing:
                construct(this, *arguments, **options)

        kind.__init__ = __init__

    # --- Hugging Face ---

    def _hub(self, module: Any) -> None:
        if not is_installed(module.__file__) or not hasattr(module, "Features"):
            return  # the user's own module of that name
        load = module.load_dataset

        @functools.wraps(load)
        def load_dataset(path: Any, name: Any = None, *arguments: Any, **options: Any) -> Any:
            try:
                return load(path, name, *arguments, **options)
            except Exception as error:
                made = None
                if type(error).__name__ in UNREACHABLE and not arguments and not os.path.exists(str(path)):
                    made = self._made(module, str(path), name, options)
                if made is None:
                    raise
                return made

        module.load_dataset = load_dataset
        if hasattr(module, "load"):
            module.load.load_dataset = load_dataset

    def _made(self, module: Any, path: str, name: Optional[str], options: Dict[str, Any]) -> Any:
        """The table, or a dictionary of its splits; None if it is not known, or asked for in another way."""
        key = path.rpartition("/")[2].lower().replace("-", "_")
        known = _TEXTS.get(key) or _TEXTS.get("%s/%s" % (key, name))
        if known is None or any(options.get(each) for each in ("data_files", "data_dir")):
            return None
        columns, splits = known
        wanted = options.get("split")
        try:
            if wanted is None:
                made = module.DatasetDict(
                    {split: _table(module, columns, rows) for split, rows in splits.items()}
                )
            elif isinstance(wanted, (list, tuple)):
                made = [_part(module, columns, splits, str(one)) for one in wanted]
            else:
                made = _part(module, columns, splits, str(wanted))
        except (KeyError, ValueError):
            return None
        if options.get("streaming"):
            if not hasattr(made, "to_iterable_dataset"):
                return None
            made = made.to_iterable_dataset()
        self._tell(path, "in the Hugging Face cache of this user", "columns")
        return made


class Samples:
    """As many pairs of path and class as there are images, without a list of them."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tuple[str, int]:
        if not -self._count <= index < self._count:
            raise IndexError(index)
        return "n%08d.JPEG" % (index % self._count), index % self._count % IMAGENET_CLASSES


def _part(module: Any, columns: Dict[str, Any], splits: Dict[str, int], wanted: str) -> Any:
    """What `split="train[:10%]"` names.

    Raises:
        KeyError: there is no such split. ValueError: it is written in a way that is not known.
    """
    found = re.fullmatch(r"(\w+)(?:\[(\d*)(%?):(\d*)(%?)\])?", wanted)
    if found is None:
        raise ValueError(wanted)
    rows = splits[found.group(1)]
    begin, end = (
        (int(number) * rows // 100 if percent else int(number)) if number else default
        for number, percent, default in (
            (found.group(2), found.group(3), 0),
            (found.group(4), found.group(5), rows),
        )
    )
    return _table(module, columns, min(end, rows) - begin)


def _table(module: Any, columns: Dict[str, Any], rows: int) -> Any:
    count = max(0, min(rows, MOST_ROWS))
    features, data = {}, {}
    for name, kind in columns.items():
        features[name], data[name] = _column(module, kind, count)
    return module.Dataset.from_dict(data, features=module.Features(features))


def _column(module: Any, kind: Any, count: int) -> Tuple[Any, List[Any]]:
    if kind == "answers":
        parts = {"text": module.Value("string"), "answer_start": module.Value("int32")}
        sequence = getattr(module, "Sequence", None) or module.List
        return sequence(parts), [{"text": ["word"], "answer_start": [0]}] * count
    if isinstance(kind, tuple):
        from PIL import Image

        width, height, mode = kind
        return module.Image(), [Image.new(mode, (width, height))] * count
    if kind < 0:
        names = list(map(str, range(-kind)))
        return module.ClassLabel(names=names), [index % -kind for index in range(count)]
    if kind == 0:
        return module.Value("int32"), list(range(count))
    long, short = (("word " * (length // 5 + 1))[:length] for length in (kind, max(1, kind // 4)))
    return module.Value("string"), [short if index % LONG_ROWS else long for index in range(count)]
