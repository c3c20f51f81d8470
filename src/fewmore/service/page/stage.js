// The upper part of the page: show images or a drawing, see the prediction, name it to teach it.

import { Camera } from "./camera.js";
import { announce, find, make, refill } from "./dom.js";
import { Pad } from "./drawing.js";
import { onImages, shrink } from "./incoming.js";
import { keep, kept } from "./keep.js";
import * as notice from "./notice.js";
import * as prediction from "./prediction.js";
import * as api from "./service.js";
import { Tray } from "./tray.js";

const CONCURRENT = 4; // predictions under way
const PAUSE = 100; // milliseconds between two predictions of a growing drawing, or of the camera

export class Stage {
  #mode = "images"; // or "drawing"
  #chosen = false; // whether the person has chosen the mode
  #most = 64; // images in a request
  #pad = new Pad(find("pad"), (over) => this.#drawingChanged(over), announce);
  #camera = new Camera(find("video"));
  #watching = false; // whether the loop of #watch runs
  #stale = false; // the drawing has changed since its last prediction
  #versionSeen; // called with the version of each prediction
  #taught; // called with the responses to teaching, and with what went wrong behind them, or null
  #names = ""; // of the known classes, as they are in the list that completes what is typed
  #tray = null;
  #restored = false; // until then, what is stored is not overwritten

  constructor(versionSeen, taught) {
    this.#versionSeen = versionSeen;
    this.#taught = taught;
    this.#tray = new Tray({
      changed: () => this.#trayChanged(),
      selected: (item) => this.#showItem(item),
      pending: () => (this.#onPad ? this.#pad.preview() : null),
      word: () => this.#mode.replace("images", "image"),
    });
    for (const radio of document.getElementsByName("mode")) {
      radio.addEventListener("change", () => {
        this.#chosen = true;
        this.switchTo(radio.value);
      });
    }
    this.#listenToPad();
    this.#listenToCamera();
    find("clear-images").addEventListener("click", () => {
      this.#tray.clear();
      this.#input.focus();
    });
    find("teach").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#teach();
    });
    onImages((files, folders) => this.#take(files, folders));
    this.#render();
  }

  #listenToPad() {
    const keepDrawing = () => this.#keepDrawing();
    const clear = () => this.#clearPad();
    const actions = { Enter: keepDrawing, Delete: clear, Backspace: clear };
    find("pad").addEventListener("keydown", (event) => {
      const action = actions[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    });
    find("another").addEventListener("click", keepDrawing);
    find("clear").addEventListener("click", clear);
  }

  #listenToCamera() {
    find("camera").hidden = !this.#camera.possible;
    this.#camera.onHold(find("camera"), () => this.#takePhoto());
    find("camera").addEventListener("click", () => this.#camera.on || this.#startCamera());
    find("camera-off").addEventListener("click", () => {
      this.#stopCamera();
      find("camera").focus();
    });
  }

  /** Sets the names of the known classes, which complete what is typed. */
  setClasses(names, most) {
    this.#most = most;
    this.#tray.setKnown(names);
    const all = names.join("\n");
    if (all === this.#names) return;
    this.#names = all;
    refill(find("names"), names.map((value) => make("option", { value })));
  }

  /** Updates the predictions after the model has changed, or was out of reach. */
  predictAgain() {
    if (this.#live || this.#mode === "drawing") this.#watch();
    this.#predictPhotos(this.#tray.shown);
  }

  switchTo(mode) {
    this.#stopCamera();
    this.#mode = mode;
    for (const radio of document.getElementsByName("mode")) radio.checked = radio.value === mode;
    find("drawing").hidden = mode !== "drawing";
    find("images").hidden = mode !== "images";
    this.#tray.render();
    this.#render();
    this.#keep();
    if (mode === "drawing") this.#watch();
  }

  /** Lets the person show more images of this class. */
  addTo(name) {
    this.#tray.setName(name);
    find("stage").scrollIntoView();
    const input = this.#input;
    input.focus({ preventScroll: true });
    if (input.type === "file") input.click();
  }

  // What survives a reload

  #keep() {
    if (!this.#restored) return;
    keep(async () => {
      const tray = await this.#tray.stored();
      const { strokes } = this.#pad;
      return tray || strokes.length ? { mode: this.#mode, tray, strokes } : null;
    });
  }

  /** Brings back what was not taught before the page was left; `mode` is shown if there is none. */
  async restore(mode) {
    const work = await kept();
    if (work?.tray) this.#tray.restore(work.tray);
    if (work) this.#pad.strokes = [...work.strokes, ...this.#pad.strokes];
    this.#restored = true;
    this.switchTo(this.#chosen ? this.#mode : (work?.mode ?? mode));
    if (this.#mode === "images") this.#predictPhotos(this.#tray.shown);
  }

  #trayChanged() {
    if (!this.#tray) return; // it is being made
    this.#render();
    this.#keep();
    const fresh = ({ drawn, prediction, problem }) => !drawn && !prediction && !problem;
    this.#predictPhotos(this.#tray.shown.filter(fresh));
  }

  // Photos

  async #take(files, folders) {
    if (!files.length && !folders.length) {
      notice.show(["There is no image in that folder."], { error: true });
      return;
    }
    this.#chosen = true;
    if (this.#mode !== "images") this.switchTo("images");
    const added = this.#tray.add(files.map((file) => ({ file, title: file.name })));
    this.#tray.addFolders(folders);
    this.#tray.selected = added[0] ?? this.#tray.shown[0];
    this.#render();
    const { shown } = this.#tray;
    await this.#predictPhotos(shown);
    const unreadable = shown.filter((item) => item.unreadable && added.includes(item));
    if (!unreadable.length) return;
    const problems = unreadable.map(({ title, problem }) => problem.replace(/^image 1\b/, title));
    notice.show(problems, { error: true });
  }

  /** Predicts each photo in its own request, so that an unreadable one does not fail the others. */
  async #predictPhotos(items) {
    const waiting = items.filter((item) => !item.drawn);
    const worker = async () => {
      for (let item; (item = waiting.shift()); ) {
        item.busy ??= this.#predictPhoto(item).finally(() => (item.busy = null));
        this.#tray.update(item);
        await item.busy;
        this.#tray.update(item);
        if (item !== this.#tray.selected) continue;
        this.#render();
        prediction.announce(item.prediction, item.problem);
      }
    };
    await Promise.all(Array.from({ length: CONCURRENT }, worker));
  }

  async #predictPhoto(item) {
    try {
      const { predictions, version } = await api.predict([await shrink(item.file)]);
      Object.assign(item, { prediction: predictions[0], problem: "", unreadable: false });
      this.#versionSeen(version);
    } catch (problem) {
      const unreadable = Boolean(problem.isOfImage);
      Object.assign(item, { prediction: null, problem: problem.message, unreadable });
      if (unreadable) this.#tray.showHint();
    }
  }

  #showItem(item) {
    if (this.#mode !== "images") this.switchTo("images");
    this.#stopCamera();
    prediction.announce(item.prediction, item.problem);
  }

  async #startCamera() {
    try {
      await this.#camera.start();
    } catch (problem) {
      const sentence = `The browser does not give access to a camera: ${problem.message}.`;
      notice.show([sentence], { error: true });
      return;
    }
    if (this.#mode === "drawing") this.#camera.stop(); // chosen before access was given
    this.#render();
    this.#watch();
  }

  #stopCamera() {
    this.#camera.stop();
    this.#render();
  }

  async #takePhoto() {
    const blob = await this.#camera.capture();
    if (!blob) return;
    const file = new File([blob], `photo ${Date.now()}.jpg`, { type: blob.type });
    [this.#tray.selected] = this.#tray.add([{ file, title: "photo" }]);
  }

  // The drawing

  #drawingChanged(over) {
    find("pad-hint").hidden = !this.#pad.empty;
    if (over) {
      this.#tray?.render();
      if (this.#tray) this.#keep();
    }
    this.#watch();
  }

  #keepDrawing() {
    if (this.#pad.empty) {
      announce("Draw something first");
      return;
    }
    // Do not wait for the file: the person may already be drawing on.
    const file = this.#pad.capture();
    const url = this.#pad.preview().toDataURL();
    this.#pad.clear();
    this.#tray.add([{ file, url, title: "drawing", drawn: true }]);
    find("pad").focus({ preventScroll: true });
    announce("Drawing kept");
  }

  #clearPad() {
    this.#pad.clear();
    find("pad").focus({ preventScroll: true });
    announce("Cleared");
  }

  // Predictions of the drawing and of the camera

  /** What changes while it is shown: the drawing or the camera; null if there is nothing. */
  get #live() {
    if (this.#mode === "drawing") return this.#pad.empty ? null : this.#pad;
    return this.#camera.on ? this.#camera : null;
  }

  /** Predicts one at a time, with pauses: the next prediction includes all changes until then. */
  async #watch() {
    this.#stale = true;
    if (this.#watching) return;
    this.#watching = true;
    while (this.#stale || this.#camera.on) {
      this.#stale = false;
      const succeeded = await this.#predictLive(this.#live);
      this.#stale ||= !succeeded; // until the service answers again
      await new Promise((resolve) => setTimeout(resolve, succeeded ? PAUSE : 10 * PAUSE));
    }
    this.#watching = false;
  }

  /** Returns whether there is no need to try again. */
  async #predictLive(source) {
    if (!source) {
      this.#showSelected();
      return true;
    }
    try {
      const image = await source.capture();
      if (!image) return false;
      const { predictions, version } = await api.predict([image]);
      this.#versionSeen(version);
      if (this.#live !== source) return true; // cleared or switched off in the meantime
      prediction.show(predictions[0]);
      if (!this.#stale) prediction.announce(predictions[0]);
      return true;
    } catch (problem) {
      if (this.#live === source) prediction.show(null, problem.message);
      return problem.status > 0;
    }
  }

  // Teaching

  /** The control with which a person shows something. */
  get #input() {
    if (this.#mode === "drawing") return find("pad");
    return find(this.#camera.on ? "camera" : "files");
  }

  get #onPad() {
    return this.#mode === "drawing" && !this.#pad.empty;
  }

  async #teach() {
    const button = find("teach-button");
    if (button.ariaBusy === "true") return;
    const strokes = [...this.#pad.strokes]; // the person may draw on while the service learns
    const lessons = this.#tray.lessons(this.#onPad ? this.#pad.capture() : null);
    if (!lessons) {
      if (this.#tray.isEmpty && !this.#onPad) this.#input.focus();
      return;
    }
    button.ariaBusy = "true";
    const taught = [];
    let problem = null;
    for (const lesson of lessons) {
      problem = await this.#teachOne(lesson, taught).then(() => null, (error) => error);
      if (problem) break;
      if (lesson.hasDrawing) this.#pad.clear(strokes);
      lesson.done();
    }
    button.ariaBusy = null;
    if (!problem) {
      this.#input.focus({ preventScroll: true }); // the next step is to show something else
      find(this.#mode === "drawing" ? "pad" : "shown").scrollIntoView({ block: "nearest" });
    }
    if (taught.length) this.#taught(taught, problem);
    else notice.show([problem.message], { error: true });
  }

  /** Teaches a class in as many requests as its images need; adds the responses to `taught`. */
  async #teachOne(lesson, taught) {
    const { name, known } = lesson;
    const files = await lesson.images();
    for (let start = 0; start < files.length; start += this.#most) {
      const some = files.slice(start, start + this.#most);
      const titles = lesson.titles.slice(start, start + this.#most);
      try {
        const response = await (known || start ? api.add : api.teach)(name, some);
        const warnings = response.warnings.map((text) => withTitles(text, name, titles).text);
        taught.push({ ...response, warnings, known: known || start > 0 });
      } catch (problem) {
        const { text, named } = withTitles(problem.message, name, titles);
        problem.message = text;
        lesson.discard(start); // the service has these
        if (problem.isOfImage && named.length) {
          problem.message += ". Press the button again to leave it out.";
          lesson.leaveOut(named.map((index) => start + index), text);
        }
        throw problem;
      }
    }
  }

  // Rendering

  #render() {
    const filming = this.#camera.on;
    const selected = this.#tray?.selected ?? null;
    find("video").hidden = !filming;
    find("camera").textContent = filming ? "Hold to record" : "Camera";
    find("camera-off").hidden = !filming;
    find("choose").hidden = find("choose-folder").hidden = filming;
    find("clear-images").disabled = !this.#tray || this.#tray.isEmpty;
    this.#renderLarge(filming ? null : selected);
    if (!this.#live) this.#showSelected();
  }

  /** Shows the prediction of the selected photo; without one, what to do. */
  #showSelected() {
    const drawing = this.#mode === "drawing";
    const photo = drawing ? null : this.#tray?.selected;
    const invitation = drawing
      ? "Draw, and its name appears here."
      : "Show an image, and its name appears here.";
    prediction.show(photo?.prediction, photo ? photo.problem || "Looking …" : invitation);
  }

  #renderLarge(photo) {
    const frame = find("shown");
    find("drop-hint").hidden = Boolean(photo) || this.#camera.on;
    const current = frame.querySelector("img");
    if (current?.src === photo?.url) return;
    current?.remove();
    if (photo) frame.append(make("img", { src: photo.url, alt: photo.title }));
  }
}

/**
 * Replaces the numbers by which the service knows the images of a request by their titles; also
 * returns the indices of those that the text names.
 */
function withTitles(text, name, titles) {
  const numbers = titles.map((_, index) => `image ${index + 1} of ${name}`);
  const named = [...titles.keys()].filter((index) => text.includes(numbers[index]));
  for (const index of named) text = text.replaceAll(numbers[index], () => titles[index]);
  return { text, named };
}
