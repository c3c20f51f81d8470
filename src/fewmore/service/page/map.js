// The map of the classes: a dot for each class before and after adapting; and the same as a list.

import { find, make, makeSvg, refill } from "./dom.js";

const MARGIN = 36;
const DOT = 5;
const LETTER = 6.6; // approximate width of a letter of a label
const LINE = 16; // height of a label
const LISTED = 100; // classes in the list
const LONGEST = 22; // letters of a label

const shorten = (name) => (name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name);
const overlap = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
const distance = (a, b) => Math.hypot(a.after[0] - b.after[0], a.after[1] - b.after[1]);

/** Subtracts the mean: only the positions of the classes relative to one another matter. */
function centre(points) {
  const sum = points.reduce(([x, y], point) => [x + point[0], y + point[1]], [0, 0]);
  return points.map((point) => point.map((value, axis) => value - sum[axis] / points.length));
}

/** Returns the smallest and the largest value of each axis. */
function ranges(points) {
  return [0, 1].map((axis) => {
    const values = points.map((point) => point[axis]);
    const low = values.reduce((least, value) => Math.min(least, value), Infinity);
    const high = values.reduce((most, value) => Math.max(most, value), -Infinity);
    return [low, high];
  });
}

/** Returns the class that is closest to one; null if there is no other. */
function nearest(one, classes) {
  let best = null;
  for (const other of classes) {
    if (other === one) continue;
    if (!best || distance(one, other) < distance(one, best)) best = other;
  }
  return best;
}

export class ClassMap {
  #svg = find("map");
  #classes = [];
  #moment = "after";
  #dots = [];

  constructor() {
    for (const radio of document.getElementsByName("moment")) {
      radio.addEventListener("change", () => {
        this.#moment = radio.value;
        this.#place();
      });
    }
    new ResizeObserver(() => this.#draw()).observe(this.#svg);
  }

  show({ classes, adapted }) {
    const before = centre(classes.map((one) => one.before));
    const after = centre(classes.map((one) => one.after));
    this.#classes = classes.map((one, index) => {
      return { ...one, before: before[index], after: after[index] };
    });
    find("map-switch").hidden = !adapted;
    if (!adapted) this.#moment = "after";
    this.#draw();
    this.#list();
  }

  /** Draws everything for the current width, so that the text keeps its size on a phone. */
  #draw() {
    const { clientWidth: width, clientHeight: height } = this.#svg;
    if (!width) return;
    this.#svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const total = this.#classes.length;
    const label = `Map of ${total} classes; the list below says which are closest`;
    this.#svg.setAttribute("aria-label", total ? label : "Empty map");
    const place = this.#scaleTo(width, height);
    this.#dots = this.#classes.map((one) => this.#makeDot(one, place));
    const trails = this.#dots.map(({ before: [x1, y1], after: [x2, y2] }) =>
      makeSvg("line", { class: "trail", x1, y1, x2, y2 }),
    );
    this.#svg.replaceChildren(...trails, ...this.#dots.map(({ group }) => group));
    this.#place();
  }

  /** Returns the function from the map's coordinates to pixels. */
  #scaleTo(width, height) {
    const points = this.#classes.flatMap(({ before, after }) => [before, after]);
    const [[left, right], [low, high]] = ranges(points);
    const horizontal = (width - 2 * MARGIN) / (right - left || 1);
    const vertical = (height - 2 * MARGIN) / (high - low || 1);
    const scale = Math.min(horizontal, vertical);
    return ([x, y]) => [
      width / 2 + (x - (left + right) / 2) * scale,
      height / 2 - (y - (low + high) / 2) * scale,
    ];
  }

  #makeDot({ name, taught, before, after }, place) {
    const text = shorten(name);
    const label = makeSvg("text", {}, text);
    const title = makeSvg("title", {}, name);
    const circle = makeSvg("circle", { r: DOT });
    const group = makeSvg("g", { class: taught ? "dot taught" : "dot" }, title, circle, label);
    const width = text.length * LETTER;
    return { group, label, width, taught, before: place(before), after: place(after) };
  }

  /** Moves the dots to the chosen moment, and labels those that have room, taught ones first. */
  #place() {
    const pointOf = (dot) => dot[this.#moment];
    const taken = this.#dots.map(pointOf).map(([x, y]) => [x - DOT, y - DOT, x + DOT, y + DOT]);
    for (const dot of [...this.#dots].sort((a, b) => b.taught - a.taught)) {
      const [x, y] = pointOf(dot);
      dot.group.style.transform = `translate(${x}px, ${y}px)`;
      const label = this.#findRoom(dot, x, y, taken);
      if (label) taken.push(label.box);
      dot.label.setAttribute("visibility", label ? "visible" : "hidden");
      dot.label.setAttribute("x", label?.dx ?? 0);
      dot.label.setAttribute("y", label?.dy ?? 0);
    }
  }

  /** Returns where a label fits: right, left, above or below. A taught class always gets one. */
  #findRoom({ width, taught }, x, y, taken) {
    const sides = [
      [DOT + 5, 5],
      [-DOT - 5 - width, 5],
      [-width / 2, -DOT - 6],
      [-width / 2, DOT + 16],
    ];
    const right = this.#svg.clientWidth - 2;
    const labels = sides.map(([dx, dy]) => {
      return { dx, dy, box: [x + dx, y + dy - LINE + 3, x + dx + width, y + dy + 3] };
    });
    const within = labels.filter(({ box }) => box[0] > 2 && box[2] < right);
    const free = within.find(({ box }) => !taken.some((other) => overlap(box, other)));
    return free ?? (taught ? within[0] : undefined);
  }

  #list() {
    const newest = this.#classes.slice(-LISTED).reverse();
    const items = newest.map((one) => {
      const other = nearest(one, this.#classes);
      return make("li", {}, other ? `${one.name}: closest to ${other.name}` : one.name);
    });
    refill(find("map-list"), items);
  }
}
