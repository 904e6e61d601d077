"""Small copies of the published data sets in their official layouts: random images and labels of the right names, ids and folders."""
import pathlib

import numpy as np

from cli_support import png, write

# kind -> the official ids of its classes, and of void
IDS = {
    "cityscapes": ([7, 8, 11, 12, 13, 17, *range(19, 29), 31, 32, 33], 0),
    "cocostuff10k": (range(92, 183), 0),
    "cocostuff164k": (range(91, 182), 255),
    "vistas": (range(65), 65),
    "voc": (range(21), 255),
    "ade20k": (range(1, 151), 0),
    "camvid": (range(11), 11),
}
CLASSES = {kind: len(ids) for kind, (ids, _) in IDS.items()} | {"cifar10": 10, "cifar100": 100, "imagenet": 3}
SYNSETS = ("n01440764", "n02100735", "n02119789")


def pairs(kind, images):
    """(image, label, list and the name in it, if any) of each pair, for training and validation."""
    for train in (True, False):
        for i in range(images):
            if kind == "cityscapes":
                split, city = ("train", "aachen") if train else ("val", "lindau")
                base = f"{split}/{city}/{city}_{i:06}_000019"
                yield f"leftImg8bit/{base}_leftImg8bit.png", f"gtFine/{base}_gtFine_labelIds.png", None
            elif kind == "cocostuff10k":
                name = f"COCO_train2014_{i + 100 * train:012}"
                yield f"images/{name}.jpg", f"annotations/{name}.png", (f"imageLists/{'train' if train else 'test'}.txt", name)
            elif kind == "cocostuff164k":
                base = f"{'train2017' if train else 'val2017'}/{i:012}"
                yield f"{base}.jpg", f"stuffthingmaps/{base}.png", None
            elif kind == "vistas":
                split = "training" if train else "validation"
                yield f"{split}/images/scene-{i}.jpg", f"{split}/labels/scene-{i}.png", None
            elif kind == "voc":
                name = f"{2007 + train}_{i:06}"
                yield (f"JPEGImages/{name}.jpg", f"SegmentationClass/{name}.png",
                       (f"ImageSets/Segmentation/{'train' if train else 'val'}.txt", name))
            elif kind == "ade20k":
                split = "training" if train else "validation"
                base = f"{split}/ADE_{'train' if train else 'val'}_{i + 1:08}"
                yield f"images/{base}.jpg", f"annotations/{base}.png", None
            elif kind == "camvid":
                split = "train" if train else "val"
                yield f"{split}/0001TP_{i:06}.jpg", f"{split}annot/0001TP_{i:06}.png", None


def put_cifar(kind, root, images, random):
    def records(count):
        return b"".join(bytes([*([i % 20] if kind == "cifar100" else []), i % CLASSES[kind]]) + random.bytes(3072)
                        for i in range(count))

    if kind == "cifar10":
        for batch in range(1, 6):
            write(root / f"data_batch_{batch}.bin", records(images))
    else:
        write(root / "train.bin", records(images))
    write(root / ("test_batch.bin" if kind == "cifar10" else "test.bin"), records(images))


def published(kind, root, images=2, height=48, width=64):
    """Writes a small copy of the data set below `root`: `images` images for training and as many for validation; imagenet: of each
    of three classes; cifar10: in each file."""
    root, random = pathlib.Path(root), np.random.default_rng(1)
    if kind.startswith("cifar"):
        put_cifar(kind, root, images, random)
        return root
    if kind == "imagenet":
        for split in ("train", "val"):
            for synset in SYNSETS:
                for i in range(images):
                    write(root / split / synset / f"{synset}_{i}.JPEG", png(random.integers(0, 256, (height, width, 3))))
        return root
    ids, void = IDS[kind]
    lists = {}
    for image, label, entry in pairs(kind, images):
        write(root / image, png(random.integers(0, 256, (height, width, 3))))
        write(root / label, png(random.choice([*ids, void], (height, width))))
        if entry:
            lists.setdefault(entry[0], []).append(entry[1])
    for path, names in lists.items():
        write(root / path, "".join(f"{name}\n" for name in names).encode())
    return root
