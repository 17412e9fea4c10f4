"""The contrast of text, by the formula of WCAG 2.2 (its "relative luminance" and "contrast ratio")."""

from __future__ import annotations

from typing import Any

LEAST, LEAST_OF_LARGE = 4.5, 3.0
"""What text and large text must have for level AA (success criterion 1.4.3)."""

_SEEN = """(root) => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const parsed = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (front, back, opacity = 1) => {
    const part = front[3] * opacity;
    return [0, 1, 2].map((n) => front[n] * part + back[n] * (1 - part)).concat(1);
  };
  // What lies behind an element: the colours of what it is in, and of stripes those of the stripe.
  const behind = (element) => {
    const back = element.parentElement ? behind(element.parentElement) : [255, 255, 255, 1];
    const style = getComputedStyle(element);
    const stripe = /gradient\\([^,]+, (color\\([^)]+\\)|rgba?\\([^)]+\\))/.exec(style.backgroundImage);
    const plain = over(parsed(style.backgroundColor), back);
    return stripe ? over(parsed(stripe[1]), plain) : plain;
  };
  const opacity = (element) =>
    Number(getComputedStyle(element).opacity) * (element.parentElement ? opacity(element.parentElement) : 1);
  const found = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const words = walker.currentNode.textContent.trim();
    const style = getComputedStyle(element);
    if (!words || !element.checkVisibility() || element.closest("script, option, .visually-hidden")) continue;
    if (style.clipPath !== "none") continue;
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const grounds = [behind(element)];
    const fill = element.closest(".gpu-part")?.querySelector(".gpu-fill rect");
    if (fill) grounds.push(over(parsed(getComputedStyle(fill).fill), grounds[0]));
    for (const back of grounds) {
      const front = over(parsed(style.color), back, opacity(element));
      found.push([words.slice(0, 60), front.slice(0, 3), back.slice(0, 3), large]);
    }
  }
  return found;
}"""


def ratio(front: Any, back: Any) -> float:
    """Return the contrast of two colours, each its red, green and blue from 0 to 255; from 1 to 21."""
    light, dark = sorted((_luminance(front), _luminance(back)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def hard_to_read(page: Any, within: str) -> list[tuple[str, float]]:
    """Return the visible text of a part of a page that has less contrast than it must have, and how much.

    The text of a GPU's part counts on its bare ground and on the bar that tells its use.
    """
    seen = page.locator(within).evaluate(_SEEN)
    assert seen
    found = [(words, round(ratio(front, back), 2), large) for words, front, back, large in seen]
    return [(words, has) for words, has, large in found if has < (LEAST_OF_LARGE if large else LEAST)]


def _luminance(color: Any) -> float:
    parts = [part / 255 for part in color]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
