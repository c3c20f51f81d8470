"""Draw shapes on paper of many colors, as photos for the notebooks in this folder."""

import math
import random
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter

CORNERS = {"triangle": 3, "square": 4, "hexagon": 6, "star": 10, "circle": 60, "cross": 12}
CROSS = (1.0, 0.45, 1.0)  # how far three corners in a row are from the center


def draw(shape: str, seed: int, side: int = 160) -> Image.Image:
    """Return an image of a shape; place, size, angle, colors and noise come from the seed."""
    chance = random.Random(f"{shape} {seed}")
    light, dark = chance.randint(190, 255), chance.randint(0, 90)
    paper = tuple(chance.randint(light - 40, light) for _ in range(3))
    ink = tuple(chance.randint(dark, dark + 60) for _ in range(3))
    radius = side * chance.uniform(0.22, 0.38)
    x, y = (side * chance.uniform(0.42, 0.58) for _ in range(2))
    angle = math.radians(chance.uniform(-25, 25))
    count = CORNERS[shape]
    corners = []
    for number in range(count):
        far = CROSS[number % 3] if shape == "cross" else 1.0
        far = 0.42 if shape == "star" and number % 2 else far
        turn = angle + 2 * math.pi * number / count
        corners.append((x + radius * far * math.sin(turn), y - radius * far * math.cos(turn)))
    image = Image.new("RGB", (side, side), paper)
    pen = ImageDraw.Draw(image)
    if chance.random() < 0.5:
        pen.polygon(corners, fill=ink)
    else:
        pen.polygon(corners, outline=ink, width=round(side * chance.uniform(0.02, 0.05)))
    return image.filter(ImageFilter.GaussianBlur(chance.uniform(0, 1.2)))


def write(folder: str, shapes: list[str], count: int, first: int = 0) -> Path:
    """Write `count` images of each shape into folder/SHAPE, and return the folder."""
    for shape in shapes:
        place = Path(folder) / shape
        place.mkdir(parents=True, exist_ok=True)
        for seed in range(first, first + count):
            draw(shape, seed).save(place / f"{shape}-{seed:02}.png")
    return Path(folder)
