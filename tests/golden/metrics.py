"""Writes metrics.json: metrics of scikit-learn.

    python tests/golden/metrics.py > tests/golden/metrics.json
"""

import numpy as np
import sklearn
import torch
from sklearn import metrics

from filled import given, whole, write


def rounded(tensor):
    """As outputs are, in f32, and with few digits, so that there are ties."""
    return (tensor * 8).round().div(8).float().double()


def by_class(truth, answers):
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        truth, answers, average=None, zero_division=0
    )
    return {"precision": precision.tolist(), "recall": recall.tolist(), "f1": f1.tolist()}


def averaged(truth, answers, average, suffix=""):
    values = metrics.precision_recall_fscore_support(
        truth, answers, average=average, zero_division=0
    )
    return dict(zip([f"{name}{suffix}" for name in ("precision", "recall", "f1")], values))


def classes(k, n=40):
    outputs = rounded(2 * given(f"metrics.outputs.{k}", (n, k)))
    labels = whole(f"metrics.labels.{k}", (n,), k)
    # One is right more often than by chance.
    outputs[torch.arange(n), labels] += 1
    truth, answers = labels.numpy(), outputs.argmax(1).numpy()
    p = outputs.softmax(1).numpy()
    one_hot = np.eye(k)[truth]
    return {
        "k": k,
        "outputs": outputs.flatten().tolist(),
        "labels": labels.tolist(),
        "metrics": {
            "accuracy": metrics.accuracy_score(truth, answers),
            **averaged(truth, answers, "macro"),
            **(averaged(truth, answers, "binary", "_binary") if k == 2 else {}),
            # Scores that are equal but for the rounding of the softmax are equal.
            "auroc": metrics.roc_auc_score(one_hot, p.round(12), average="macro"),
            "average_precision": metrics.average_precision_score(one_hot, p.round(12), average="macro"),
            **(
                {
                    f"top{top}_accuracy": metrics.top_k_accuracy_score(
                        truth, outputs.numpy() - 1e-6 * np.arange(k), k=top, labels=range(k)
                    )
                    for top in (2, 3, 5, 10)
                }
                if k > 10
                else {}
            ),
        },
        "by_class": by_class(truth, answers),
    }


def several(k=12, n=40):
    outputs = rounded(2 * given("metrics.outputs.several", (n, k)))
    targets = (given("metrics.targets.several", (n, k)) + outputs > 0.5).double()
    targets[:, 5] = 0
    outputs[:, 5] -= 3
    truth, answers = targets.numpy(), (outputs > 0).double().numpy()
    occurs = [c for c in range(k) if truth[:, c].any()]
    score = outputs.numpy()
    return {
        "k": k,
        "outputs": outputs.flatten().tolist(),
        "targets": targets.flatten().tolist(),
        "metrics": {
            **averaged(truth, answers, "macro"),
            **averaged(truth, answers, "micro", "_micro"),
            "exact_match": metrics.accuracy_score(truth, answers),
            "auroc": metrics.roc_auc_score(truth[:, occurs], score[:, occurs], average="macro"),
            "average_precision": metrics.average_precision_score(
                truth[:, occurs], score[:, occurs], average="macro"
            ),
        },
        "by_class": by_class(truth, answers),
    }


def numbers(k=3, n=40):
    targets = (20 + 5 * given("metrics.targets.numbers", (n, k))).float().double()
    outputs = (targets + 2 * given("metrics.outputs.numbers", (n, k))).float().double()
    # A constant target.
    targets[:, 2] = 3
    truth, answers = targets.numpy(), outputs.numpy()
    return {
        "k": k,
        "outputs": outputs.flatten().tolist(),
        "targets": targets.flatten().tolist(),
        "metrics": {
            "mse": metrics.mean_squared_error(truth, answers),
            "mae": metrics.mean_absolute_error(truth, answers),
            "rmse": metrics.mean_squared_error(truth, answers) ** 0.5,
            "r2": metrics.r2_score(truth, answers),
        },
    }


write({
    "scikit-learn": sklearn.__version__,
    "classes": classes(12),
    "two_classes": classes(2),
    "several": several(),
    "numbers": numbers(),
})
