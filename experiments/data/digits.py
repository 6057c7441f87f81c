"""Pictures of digits, drawn from 5 x 7 dots at another place each time: a data set as for torch's DataLoader."""

import random

DOTS = [
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
]


class Digits:
    classes = [str(digit) for digit in range(10)]

    def __init__(self, n, size=12, noise=0.5):
        self.size, self.noise = size, noise
        self.targets = [index % 10 for index in range(n)]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        # ddprun seeds `random` for each sample: in training anew in each epoch, in evaluations always the same.
        digit = self.targets[index]
        image = [[random.uniform(-self.noise, self.noise) for _ in range(self.size)] for _ in range(self.size)]
        top, left = random.randint(0, self.size - 7), random.randint(0, self.size - 5)
        for row, dots in enumerate(DOTS[digit].split()):
            for column, dot in enumerate(dots):
                image[top + row][left + column] += int(dot)
        return [image], digit  # (channels, height, width), class
