"""Pictures of returns."""

from __future__ import annotations

from PIL import Image, ImageDraw

WIDTH, HEIGHT, MARGIN = 800, 400, 50


def save(path: str, points: list[tuple[int, float]], frames: int, label: str) -> None:
    """Draws each return over the frame at which its episode ended, and the mean of the last twenty
    of them.
    """
    picture = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(picture)
    draw.rectangle((MARGIN, MARGIN, WIDTH - MARGIN, HEIGHT - MARGIN), outline="gray")
    values = [value for _, value in points] or [0.0]
    low, high = min(values), max(values) if max(values) > min(values) else min(values) + 1

    def place(frame: float, value: float) -> tuple[float, float]:
        across, up = frame / frames, (value - low) / (high - low)
        return MARGIN + across * (WIDTH - 2 * MARGIN), HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN)

    for frame, value in points:
        x, y = place(frame, value)
        draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill="lightsteelblue")
    recent = [values[max(index - 19, 0) : index + 1] for index in range(len(points))]
    draw.line(
        [place(frame, sum(some) / len(some)) for (frame, _), some in zip(points, recent)],
        fill="navy",
        width=2,
    )
    draw.text(
        (MARGIN, MARGIN / 2),
        f"{label}: returns of {len(points)} episodes and their moving mean",
        fill="black",
    )
    draw.text(
        (WIDTH / 2, HEIGHT - MARGIN / 2), f"frames, 0 to {frames:,}", fill="black", anchor="mm"
    )
    for value in (low, high):
        draw.text((MARGIN - 5, place(0, value)[1]), f"{value:g}", fill="black", anchor="rm")
    picture.save(path)
