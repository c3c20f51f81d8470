// The map of the classes: one dot a class, where the model sees it before and after adapting; and the same as a list.

import { find, make, makeSvg, refill } from "./dom.js";

const MARGIN = 36;
const DOT = 5;
const LETTER = 6.6; // width of a letter of a label, about
const LINE = 16; // height of a label
const LISTED = 100; // classes in the list
const CUT = 22; // letters of a long label

const shorten = (name) => (name.length > CUT ? `${name.slice(0, CUT - 1)}…` : name);
const overlap = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];

/** What all classes have moved alike is left out: how they lie to one another is what counts. */
function centred(spots) {
  const mean = [0, 1].map((axis) => spots.reduce((sum, spot) => sum + spot[axis], 0) / spots.length);
  return spots.map((spot) => spot.map((value, axis) => value - mean[axis]));
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
    const [before, after] = [centred(classes.map((one) => one.before)), centred(classes.map((one) => one.after))];
    this.#classes = classes.map((one, index) => ({ ...one, before: before[index], after: after[index] }));
    find("map-switch").hidden = !adapted;
    if (!adapted) this.#moment = "after";
    this.#draw();
    this.#list();
  }

  /** Draws everything for the present width: the text keeps its size on a phone. */
  #draw() {
    const [width, height] = [this.#svg.clientWidth, this.#svg.clientHeight];
    if (!width) return;
    this.#svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const classes = this.#classes;
    this.#svg.setAttribute("aria-label", classes.length ? `Map of ${classes.length} classes; the list below says which are closest` : "Empty map");
    const spots = classes.flatMap(({ before, after }) => [before, after]);
    const range = [0, 1].map((axis) => spots.reduce(([low, high], spot) => [Math.min(low, spot[axis]), Math.max(high, spot[axis])], [Infinity, -Infinity]));
    const scale = Math.min((width - 2 * MARGIN) / (range[0][1] - range[0][0] || 1), (height - 2 * MARGIN) / (range[1][1] - range[1][0] || 1));
    const middle = range.map(([low, high]) => (low + high) / 2);
    const place = ([x, y]) => [width / 2 + (x - middle[0]) * scale, height / 2 - (y - middle[1]) * scale];
    this.#dots = classes.map(({ name, taught, before, after }) => {
      const label = makeSvg("text", {});
      label.textContent = shorten(name);
      const title = makeSvg("title");
      title.textContent = name;
      const group = makeSvg("g", { class: taught ? "dot taught" : "dot" }, title, makeSvg("circle", { r: DOT }), label);
      return { group, label, length: shorten(name).length * LETTER, taught, before: place(before), after: place(after) };
    });
    const trails = this.#dots.map(({ before, after }) => makeSvg("line", { class: "trail", x1: before[0], y1: before[1], x2: after[0], y2: after[1] }));
    this.#svg.replaceChildren(...trails, ...this.#dots.map(({ group }) => group));
    this.#place();
  }

  /** Moves the dots to the chosen moment, and gives a label to each that has room for one; the taught classes choose first, and always have one. */
  #place() {
    const spotOf = (dot) => dot[this.#moment];
    const width = this.#svg.clientWidth;
    const taken = this.#dots.map(spotOf).map(([x, y]) => [x - DOT, y - DOT, x + DOT, y + DOT]);
    for (const dot of [...this.#dots].sort((a, b) => b.taught - a.taught)) {
      const [x, y] = spotOf(dot);
      dot.group.style.transform = `translate(${x}px, ${y}px)`;
      const sides = [[DOT + 5, 5], [-DOT - 5 - dot.length, 5], [-dot.length / 2, -DOT - 6], [-dot.length / 2, DOT + 16]];
      const boxOf = ([dx, dy]) => [x + dx, y + dy - LINE + 3, x + dx + dot.length, y + dy + 3];
      const within = sides.filter((side) => boxOf(side)[0] > 2 && boxOf(side)[2] < width - 2);
      const free = within.find((side) => !taken.some((other) => overlap(boxOf(side), other)));
      const side = free ?? (dot.taught ? within[0] : undefined); // a taught class is looked for, and may cover others
      if (side) taken.push(boxOf(side));
      dot.label.setAttribute("visibility", side ? "visible" : "hidden");
      dot.label.setAttribute("x", side?.[0] ?? 0);
      dot.label.setAttribute("y", side?.[1] ?? 0);
    }
  }

  #list() {
    const classes = this.#classes;
    const newest = classes.slice(-LISTED).reverse();
    const distance = (a, b) => Math.hypot(a.after[0] - b.after[0], a.after[1] - b.after[1]);
    const nearest = (one) => classes.reduce((best, other) => (other !== one && (!best || distance(one, other) < distance(one, best)) ? other : best), null);
    const items = newest.map((one) => {
      const other = nearest(one);
      return make("li", {}, other ? `${one.name}: closest to ${other.name}` : one.name);
    });
    refill(find("map-list"), items);
  }
}
