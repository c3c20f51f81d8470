// The map of the classes: a dot for each class before and after adapting; and the same as a list.

import { find, make, makeSvg, refill } from "./dom.js";

const MARGIN = 36;
const LETTER = 6.6; // approximate width of a letter of a label
const LINE = 16; // height of a label
const LABELS = 100; // at most
const TRIED = 1000; // classes that a label is tried for
const MOVING = 500; // with more dots than this they jump
const LISTED = 100; // classes in the list
const LONGEST = 22; // letters of a label
const TRAILS = 300; // with more classes the lines would hide the dots
const ZOOMABLE = 40; // classes from which on the map can be enlarged
const STEP = 1.6; // times larger with each press of the button
const LARGEST = 60; // times
const NEAR = 14; // pixels from the pointer to the dot that it means
const CELL = 32; // pixels of the grid in which boxes are looked for

const shorten = (name) => {
  const letters = [...name]; // a part of the text could end within an emoji
  return letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}…` : name;
};
const overlap = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
const distance = (a, b) => Math.hypot(a.after[0] - b.after[0], a.after[1] - b.after[1]);
const sizeOfDots = (number) => (number > 2000 ? 2 : number > 300 ? 3.5 : 5);

/** Finds boxes [left, top, right, bottom] that overlap another one, without looking at all. */
class Grid {
  #cells = new Map();

  #keys([left, top, right, bottom]) {
    const keys = [];
    for (let x = Math.floor(left / CELL); x <= Math.floor(right / CELL); x++) {
      for (let y = Math.floor(top / CELL); y <= Math.floor(bottom / CELL); y++) {
        keys.push(x * 100_003 + y);
      }
    }
    return keys;
  }

  add(box, value = null) {
    for (const key of this.#keys(box)) {
      const cell = this.#cells.get(key);
      if (cell) cell.push([box, value]);
      else this.#cells.set(key, [[box, value]]);
    }
  }

  isFree(box) {
    return this.#keys(box).every((key) => {
      return !(this.#cells.get(key) ?? []).some(([other]) => overlap(box, other));
    });
  }

  /** Returns the values of boxes in the cells of this one. */
  around(box) {
    return this.#keys(box).flatMap((key) => (this.#cells.get(key) ?? []).map(([, value]) => value));
  }
}

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
  #adapted = false;
  #moment = "after";
  #dots = [];
  #radius = 5;
  #size = [0, 0]; // of the view: reading it anew for each dot would lay out the page each time
  #zoom = 1;
  #middle = [0, 0]; // what is in the middle of the view, in pixels of the whole map
  #drag = null; // where it began
  #world = makeSvg("g"); // all that moves when the map is dragged
  #grid = new Grid(); // of the dots, where they are now
  #trails = makeSvg("path", { class: "trail" });
  #labels = makeSvg("g");
  #pointed = makeSvg("g", { class: "pointed" });

  constructor() {
    for (const radio of document.getElementsByName("moment")) {
      radio.addEventListener("change", () => {
        this.#moment = radio.value;
        this.#place();
      });
    }
    new ResizeObserver(() => this.#draw()).observe(this.#svg);
    find("zoom-in").addEventListener("click", () => this.#enlarge(STEP));
    find("zoom-out").addEventListener("click", () => this.#enlarge(1 / STEP));
    this.#svg.addEventListener("pointerdown", (event) => this.#startDrag(event));
    for (const end of ["pointerup", "pointercancel"]) {
      this.#svg.addEventListener(end, (event) => this.#endDrag(event));
    }
    this.#svg.addEventListener("pointermove", (event) => this.#point(event));
    this.#svg.addEventListener("pointerleave", () => this.#pointed.replaceChildren());
  }

  show({ classes, adapted }) {
    const before = centre(classes.map((one) => one.before));
    const after = centre(classes.map((one) => one.after));
    this.#classes = classes.map((one, index) => {
      return { ...one, before: before[index], after: after[index] };
    });
    this.#adapted = adapted;
    find("map-switch").hidden = !adapted;
    find("map-adapted").hidden = !adapted || classes.length > TRAILS;
    find("zoom").hidden = classes.length < ZOOMABLE;
    if (!adapted) this.#moment = "after";
    this.#draw();
    this.#list();
  }

  /** Draws everything for the current width, so that the text keeps its size on a phone. */
  #draw() {
    const { clientWidth: width, clientHeight: height } = this.#svg;
    if (!width) return;
    this.#size = [width, height];
    this.#svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const total = this.#classes.length;
    const label = `Map of ${total} classes; the list below says which are closest`;
    this.#svg.setAttribute("aria-label", total ? label : "Empty map");
    this.#svg.classList.toggle("still", total > MOVING);
    this.#radius = sizeOfDots(total);
    const place = this.#scaleTo(width, height);
    this.#dots = this.#classes.map((one) => {
      const attributes = { class: one.taught ? "dot taught" : "dot", r: this.#radius };
      const circle = makeSvg("circle", attributes);
      return { ...one, circle, before: place(one.before), after: place(one.after) };
    });
    const circles = this.#dots.map(({ circle }) => circle);
    this.#world.replaceChildren(this.#trails, ...circles, this.#labels, this.#pointed);
    this.#svg.replaceChildren(this.#world);
    this.#enlarge(1 / this.#zoom);
  }

  // Enlarging, and dragging what is enlarged

  #enlarge(times) {
    this.#zoom = Math.min(LARGEST, Math.max(1, this.#zoom * times));
    if (this.#zoom === 1) this.#middle = this.#size.map((side) => side / 2);
    this.#svg.classList.toggle("large", this.#zoom > 1);
    find("zoom-in").disabled = this.#zoom === LARGEST;
    find("zoom-out").disabled = this.#zoom === 1;
    this.#place();
  }

  /** Returns where a point of the whole map is in the view. */
  #inView([x, y]) {
    const [width, height] = this.#size;
    const [middleX, middleY] = this.#middle;
    return [width / 2 + (x - middleX) * this.#zoom, height / 2 + (y - middleY) * this.#zoom];
  }

  #startDrag(event) {
    if (this.#zoom === 1 || event.button !== 0) return;
    this.#svg.setPointerCapture(event.pointerId);
    this.#drag = [event.clientX, event.clientY];
  }

  #endDrag({ clientX, clientY }) {
    if (!this.#drag) return;
    const [x, y] = this.#drag;
    this.#drag = null;
    this.#world.removeAttribute("transform");
    const [middleX, middleY] = this.#middle;
    this.#middle = [middleX - (clientX - x) / this.#zoom, middleY - (clientY - y) / this.#zoom];
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

  /** Moves the dots to the chosen moment, and labels those that have room, newest first. */
  #place() {
    const taken = new Grid();
    this.#grid = new Grid();
    this.#pointed.replaceChildren();
    const [width, height] = this.#size;
    const r = this.#radius;
    const shown = this.#dots.filter((dot) => {
      const [x, y] = (dot.now = this.#inView(dot[this.#moment]));
      const box = [x - r, y - r, x + r, y + r];
      const within = overlap(box, [0, 0, width, height]);
      dot.circle.style.display = within ? "" : "none";
      if (!within) return false;
      dot.circle.style.transform = `translate(${x}px, ${y}px)`;
      taken.add(box);
      this.#grid.add(box, dot);
      return true;
    });
    this.#drawTrails(shown);
    const taught = shown.filter((dot) => dot.taught).reverse();
    const others = shown.filter((dot) => !dot.taught);
    const labels = [];
    for (const dot of [...taught, ...others].slice(0, TRIED)) {
      if (labels.length >= LABELS) break;
      const found = this.#findRoom(dot, taken, dot === taught[0]);
      if (!found) continue;
      taken.add(found.box);
      labels.push(this.#label(dot, found));
    }
    this.#labels.replaceChildren(...labels);
  }

  /** Draws lines from where classes are before adapting to where they are after it. */
  #drawTrails(shown) {
    const some = this.#adapted && shown.length <= TRAILS ? shown : [];
    const lines = some.map(({ before, after }) => {
      return `M${this.#inView(before).join(" ")}L${this.#inView(after).join(" ")}`;
    });
    this.#trails.setAttribute("d", lines.join(""));
  }

  #label({ name, taught }, { x, y }) {
    return makeSvg("text", { class: taught ? "label taught" : "label", x, y }, shorten(name));
  }

  /** Returns where a label fits: right, left, above or below; if it must be shown, right of it. */
  #findRoom(dot, taken, must) {
    const [left, top] = dot.now;
    const width = shorten(dot.name).length * LETTER;
    const r = this.#radius;
    const sides = [
      [r + 5, 5],
      [-r - 5 - width, 5],
      [-width / 2, -r - 6],
      [-width / 2, r + 16],
    ];
    const right = this.#size[0] - 2;
    const places = sides.map(([dx, dy]) => {
      const [x, y] = [left + dx, top + dy];
      return { x, y, box: [x, y - LINE + 3, x + width, y + 3] };
    });
    const within = places.filter(({ box }) => box[0] > 2 && box[2] < right);
    return within.find(({ box }) => taken.isFree(box)) ?? (must ? within[0] : undefined);
  }

  /** Names the dot that the pointer is near. */
  #point({ offsetX: x, offsetY: y, clientX, clientY }) {
    if (this.#drag) {
      const [fromX, fromY] = this.#drag;
      this.#world.setAttribute("transform", `translate(${clientX - fromX} ${clientY - fromY})`);
      return;
    }
    const near = this.#grid.around([x - NEAR, y - NEAR, x + NEAR, y + NEAR]);
    const far = (dot) => Math.hypot(dot.now[0] - x, dot.now[1] - y);
    const dot = near.reduce((best, one) => (best && far(best) <= far(one) ? best : one), null);
    if (!dot || far(dot) > NEAR) {
      this.#pointed.replaceChildren();
      return;
    }
    const place = this.#findRoom(dot, new Grid(), true);
    if (!place) return;
    const [left, top, right, bottom] = place.box;
    const size = { x: left - 4, y: top, width: right - left + 8, height: bottom - top + 2, rx: 4 };
    this.#pointed.replaceChildren(makeSvg("rect", size), this.#label(dot, place));
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
