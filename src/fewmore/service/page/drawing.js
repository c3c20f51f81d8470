// The drawing pad: strokes by mouse, finger, pen or keys, and the image of them that the model is shown.

const THICKNESS = 1 / 26; // of the pad's side, as seen by the person
const IMAGE = 128; // pixels of the image that is sent
const FILLED = 0.7; // of the image's side, by the drawing's longer one
const PEN = IMAGE / 12; // thickness of the strokes in the image
const SMALLEST = 0.2; // of the pad: what is smaller is not blown up further, so that a dot stays a dot
const STEP = 0.04; // of the pad: one press of an arrow key

/** One smooth line through the points [x, y], each moved by `place`. */
function trace(context, points, place) {
  const spots = points.map(place);
  context.beginPath();
  context.moveTo(...spots[0]);
  for (let i = 1; i < spots.length - 1; i++) {
    const middle = [(spots[i][0] + spots[i + 1][0]) / 2, (spots[i][1] + spots[i + 1][1]) / 2];
    context.quadraticCurveTo(...spots[i], ...middle);
  }
  context.lineTo(...spots[spots.length - 1]);
  context.stroke();
}

/** Draws the strokes anew, centred, as large and as thick as the model expects them: dark on white. */
function paint(strokes) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = IMAGE;
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, IMAGE, IMAGE);
  Object.assign(context, { strokeStyle: "#000", lineWidth: PEN, lineCap: "round", lineJoin: "round" });
  const [low, high] = [[1, 1], [0, 0]];
  for (const [x, y] of strokes.flat()) {
    [low[0], low[1]] = [Math.min(low[0], x), Math.min(low[1], y)];
    [high[0], high[1]] = [Math.max(high[0], x), Math.max(high[1], y)];
  }
  const scale = (FILLED * IMAGE - PEN) / Math.max(high[0] - low[0], high[1] - low[1], SMALLEST);
  const place = ([x, y]) => [IMAGE / 2 + (x - (low[0] + high[0]) / 2) * scale, IMAGE / 2 + (y - (low[1] + high[1]) / 2) * scale];
  for (const stroke of strokes) trace(context, stroke, place);
  return canvas;
}

export class Pad {
  #canvas;
  #strokes = []; // lists of points, from 0 to 1
  #pointer = null; // the one that draws; a second finger does not
  #pen = null; // where the keys' pen is, once a key was pressed
  #down = false; // whether it draws
  #changed;
  #said;

  /** changed(over) is called with every change of the drawing, over = the stroke has ended; said(text) tells what a key did. */
  constructor(canvas, changed, said) {
    this.#canvas = canvas;
    this.#changed = changed;
    this.#said = said;
    canvas.addEventListener("pointerdown", (event) => this.#start(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => this.#end(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("blur", () => this.#rest());
    new ResizeObserver(() => this.#show()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#show());
  }

  get empty() {
    return !this.#strokes.length;
  }

  clear() {
    this.#strokes = [];
    this.#down = false;
    this.#update(true);
  }

  /** The drawing as a small canvas, to be looked at. */
  preview() {
    return paint(this.#strokes);
  }

  /** The drawing as a PNG file, to be sent. */
  image() {
    return new Promise((resolve) => paint(this.#strokes).toBlob(resolve, "image/png"));
  }

  #update(over) {
    this.#show();
    this.#changed(over);
  }

  #point(event) {
    const box = this.#canvas.getBoundingClientRect();
    const within = (value) => Math.min(1, Math.max(0, value));
    return [within((event.clientX - box.left) / box.width), within((event.clientY - box.top) / box.height)];
  }

  #start(event) {
    if (this.#pointer !== null || event.button !== 0) return;
    this.#pointer = event.pointerId;
    this.#pen = null;
    this.#down = false;
    this.#canvas.setPointerCapture(event.pointerId);
    this.#strokes.push([this.#point(event)]);
    this.#update(false);
  }

  #move(event) {
    if (event.pointerId !== this.#pointer) return;
    const events = event.getCoalescedEvents?.() ?? [];
    this.#strokes.at(-1)?.push(...(events.length ? events : [event]).map((each) => this.#point(each)));
    this.#update(false);
  }

  #end(event) {
    if (event.pointerId !== this.#pointer) return;
    this.#pointer = null;
    this.#update(true);
  }

  #key(event) {
    const step = event.shiftKey ? STEP / 4 : STEP;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (event.key in moves) {
      this.#pen ??= [0.5, 0.5];
      this.#pen = this.#pen.map((value, axis) => Math.min(1, Math.max(0, value + moves[event.key][axis])));
      if (this.#down) this.#strokes.at(-1).push(this.#pen);
    } else if (event.key === " ") {
      this.#pen ??= [0.5, 0.5];
      this.#down = !this.#down;
      if (this.#down) this.#strokes.push([this.#pen]);
      this.#said(this.#down ? "Pen down" : "Pen up");
    } else {
      return;
    }
    event.preventDefault();
    this.#update(!this.#down);
  }

  /** Without the focus, the keys' pen is lifted and out of sight. */
  #rest() {
    this.#pen = null;
    this.#down = false;
    this.#show();
  }

  #show() {
    const canvas = this.#canvas;
    const side = Math.round(canvas.clientWidth * devicePixelRatio);
    if (!side) return;
    canvas.width = canvas.height = side; // clears it, too
    const context = canvas.getContext("2d");
    const colours = getComputedStyle(canvas);
    Object.assign(context, { strokeStyle: colours.color, lineWidth: side * THICKNESS, lineCap: "round", lineJoin: "round" });
    const place = ([x, y]) => [x * side, y * side];
    for (const stroke of this.#strokes) trace(context, stroke, place);
    if (!this.#pen) return;
    context.fillStyle = context.strokeStyle = colours.accentColor;
    context.lineWidth = side / 150;
    context.beginPath();
    context.arc(...place(this.#pen), side * THICKNESS, 0, 2 * Math.PI);
    if (this.#down) context.fill();
    else context.stroke();
  }
}
