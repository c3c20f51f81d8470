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

/**
 * Gives an element these children. Those that stay are not touched: a button that were taken out
 * and put back between the press and the release of the mouse would get no click.
 */
export function refill(parent, children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const wanted = new Set(children);
  for (const old of [...parent.children]) if (!wanted.has(old)) old.remove();
  children.forEach((child, index) => {
    const there = parent.children[index];
    if (there !== child) parent.insertBefore(child, there ?? null);
  });
  if (focused?.isConnected) focused.focus({ preventScroll: true });
}

/** Writes a class's name as the service does: folders of a Mac have decomposed letters. */
export const cleanName = (text) => text.normalize("NFC").trim();

/** Announces a text to screen readers, once. */
export function announce(text) {
  if (find("spoken").textContent !== text) find("spoken").textContent = text;
}

/** Formats a number with its noun in singular or plural. */
export function count(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString()} ${number === 1 ? noun : plural}`;
}

export const percent = (share) => `${Math.round(share * 100)} %`;
