"""Handwritten digits with a convolutional network: images as an array column, on this machine, without Spark.

python examples/digits.py [--trials 4] [--epochs 4]
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import cerebro_spark as cs
from cerebro_spark import hp


def model_fn(params: dict[str, Any]) -> cs.TorchModel:
    import torch
    from torch import nn

    width = params["channels"]
    module = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * 16, 10),
    )
    optimizer = torch.optim.AdamW(module.parameters(), lr=params["lr"])
    return cs.TorchModel(module, optimizer, nn.CrossEntropyLoss(), metrics={"accuracy": accuracy})


def accuracy(output: Any, label: Any) -> Any:
    return (output.argmax(dim=1) == label).float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()

    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images[:, None, :, :] / 16).astype("float32")
    data = {"image": images[:1500], "digit": digits.target[:1500].astype("int64")}
    test = {"image": images[1500:], "digit": digits.target[1500:].astype("int64")}
    search = cs.ASHA(
        model_fn,
        space={"lr": hp.loguniform(1e-3, 3e-2), "channels": hp.choice([8, 16]), "batch_size": 32},
        num_trials=options.trials,
        max_epochs=options.epochs,
        eta=2,
        backend=cs.LocalBackend(num_workers=2),
        store=tempfile.mkdtemp(prefix="digits-"),
        features="image",
        label="digit",
        validation=0.2,
        metric="val_accuracy",
        seed=1,
    )
    result = search.fit(data)
    print(result)
    measured = result.evaluate(test)
    print(f"accuracy on {len(test['digit'])} digits it never saw: {measured['accuracy']:.3f}")


if __name__ == "__main__":
    main()
