// The drawing pad: strokes by mouse, finger, pen or keys, and the image of them for the model.

const LINE_WIDTH = 1 / 26; // of the pad's side, as shown to the person
const SIZE = 128; // pixels of the image that is sent
const FILLED = 0.7; // of the image's side, by the drawing's longer one
const IMAGE_LINE_WIDTH = SIZE / 12; // pixels
const SMALLEST = 0.2; // of the pad: smaller drawings are not enlarged further; a dot stays a dot
const STEP = 0.04; // of the pad: one press of an arrow key
const ROUND = { lineCap: "round", lineJoin: "round" };

const clamp = (value) => Math.min(1, Math.max(0, value));

/** Draws a smooth line through the points [x, y], each mapped by `place`. */
function drawLine(context, points, place) {
  const places = points.map(place);
  context.beginPath();
  context.moveTo(...places[0]);
  for (let i = 1; i < places.length - 1; i++) {
    const [[x, y], [nextX, nextY]] = [places[i], places[i + 1]];
    context.quadraticCurveTo(x, y, (x + nextX) / 2, (y + nextY) / 2);
  }
  context.lineTo(...places[places.length - 1]);
  context.stroke();
}

/** Returns the corners of the smallest box around all strokes. */
function boundingBox(strokes) {
  const [low, high] = [[1, 1], [0, 0]];
  for (const point of strokes.flat()) {
    for (const axis of [0, 1]) {
      low[axis] = Math.min(low[axis], point[axis]);
      high[axis] = Math.max(high[axis], point[axis]);
    }
  }
  return [low, high];
}

/** Draws the strokes centred, at the size and line width the model expects: dark on white. */
function paint(strokes) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIZE;
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, SIZE, SIZE);
  Object.assign(context, { strokeStyle: "#000", lineWidth: IMAGE_LINE_WIDTH, ...ROUND });
  const [low, high] = boundingBox(strokes);
  const longer = Math.max(high[0] - low[0], high[1] - low[1], SMALLEST);
  const scale = (FILLED * SIZE - IMAGE_LINE_WIDTH) / longer;
  const middle = [(low[0] + high[0]) / 2, (low[1] + high[1]) / 2];
  const place = (point) => point.map((value, axis) => SIZE / 2 + (value - middle[axis]) * scale);
  for (const stroke of strokes) drawLine(context, stroke, place);
  return canvas;
}

export class Pad {
  #canvas;
  #strokes = []; // lists of points, from 0 to 1
  #pointer = null; // the one that draws; a second finger does not
  #cursor = null; // of the keys, once a key was pressed
  #down = false; // whether the keys draw
  #changed;
  #announce;

  /**
   * Calls changed(over) with every change of the drawing, where `over` means that the stroke has
   * ended, and announce(text) to say what a key did.
   */
  constructor(canvas, changed, announce) {
    this.#canvas = canvas;
    this.#changed = changed;
    this.#announce = announce;
    canvas.addEventListener("pointerdown", (event) => this.#start(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const end of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(end, (event) => this.#end(event));
    }
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("blur", () => this.#hideCursor());
    new ResizeObserver(() => this.#show()).observe(canvas);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => this.#show());
  }

  get empty() {
    return !this.#strokes.length;
  }

  /** The drawing as lists of points, which can be stored. */
  get strokes() {
    return this.#strokes;
  }

  set strokes(strokes) {
    this.#strokes = strokes;
    this.#update(true);
  }

  /** Removes these strokes; later ones stay. */
  clear(strokes = this.#strokes) {
    this.#strokes = this.#strokes.filter((stroke) => !strokes.includes(stroke));
    if (this.empty) this.#down = false;
    this.#update(true);
  }

  /** Returns the drawing as a small canvas, to be shown. */
  preview() {
    return paint(this.#strokes);
  }

  /** Returns the drawing as a PNG file, to be sent. */
  capture() {
    return new Promise((resolve) => paint(this.#strokes).toBlob(resolve, "image/png"));
  }

  #update(over) {
    this.#show();
    this.#changed(over);
  }

  #point(event) {
    const box = this.#canvas.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width;
    const y = (event.clientY - box.top) / box.height;
    return [clamp(x), clamp(y)];
  }

  #start(event) {
    if (this.#pointer !== null || event.button !== 0) return;
    this.#pointer = event.pointerId;
    this.#cursor = null;
    this.#down = false;
    this.#canvas.setPointerCapture(event.pointerId);
    this.#strokes.push([this.#point(event)]);
    this.#update(false);
  }

  #move(event) {
    if (event.pointerId !== this.#pointer) return;
    const coalesced = event.getCoalescedEvents?.() ?? [];
    const events = coalesced.length ? coalesced : [event];
    this.#strokes.at(-1)?.push(...events.map((each) => this.#point(each)));
    this.#update(false);
  }

  #end(event) {
    if (event.pointerId !== this.#pointer) return;
    this.#pointer = null;
    this.#update(true);
  }

  #key(event) {
    const step = event.shiftKey ? STEP / 4 : STEP;
    const moves = {
      ArrowLeft: [-step, 0],
      ArrowRight: [step, 0],
      ArrowUp: [0, -step],
      ArrowDown: [0, step],
    };
    if (event.key in moves) {
      const move = moves[event.key];
      this.#cursor ??= [0.5, 0.5];
      this.#cursor = this.#cursor.map((value, axis) => clamp(value + move[axis]));
      if (this.#down) this.#strokes.at(-1).push(this.#cursor);
    } else if (event.key === " ") {
      this.#cursor ??= [0.5, 0.5];
      this.#down = !this.#down;
      if (this.#down) this.#strokes.push([this.#cursor]);
      this.#announce(this.#down ? "Pen down" : "Pen up");
    } else {
      return;
    }
    event.preventDefault();
    this.#update(!this.#down);
  }

  /** Lifts the pen and hides the keys' cursor when the pad loses the focus. */
  #hideCursor() {
    this.#cursor = null;
    this.#down = false;
    this.#show();
  }

  #show() {
    const canvas = this.#canvas;
    const side = Math.round(canvas.clientWidth * devicePixelRatio);
    if (!side) return;
    canvas.width = canvas.height = side; // this also clears it
    const context = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    const lineWidth = side * LINE_WIDTH;
    Object.assign(context, { strokeStyle: style.color, lineWidth, ...ROUND });
    const place = ([x, y]) => [x * side, y * side];
    for (const stroke of this.#strokes) drawLine(context, stroke, place);
    if (!this.#cursor) return;
    context.fillStyle = context.strokeStyle = style.accentColor;
    context.lineWidth = side / 150;
    context.beginPath();
    context.arc(...place(this.#cursor), side * LINE_WIDTH, 0, 2 * Math.PI);
    if (this.#down) context.fill();
    else context.stroke();
  }
}
