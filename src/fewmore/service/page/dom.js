// Builds the page's elements. Text only ever becomes text nodes, so a name can hold any characters.

export const find = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Replaces the children, and gives the focus back to the one that had it if it is still there. */
export function refill(parent, children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  parent.replaceChildren(...children);
  if (focused?.isConnected) focused.focus({ preventScroll: true });
}

/** Announces a text to screen readers, once. */
export function announce(text) {
  if (find("spoken").textContent !== text) find("spoken").textContent = text;
}

/** Formats a number with its noun in singular or plural. */
export function count(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString()} ${number === 1 ? noun : plural}`;
}

export const percent = (share) => `${Math.round(share * 100)} %`;
