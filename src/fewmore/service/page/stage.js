// The upper part of the page: show images or a drawing, see the prediction, name it to teach it.

import { Camera } from "./camera.js";
import { announce, count, find, make, refill } from "./dom.js";
import { Pad } from "./drawing.js";
import { onImages, shrink } from "./incoming.js";
import * as notice from "./notice.js";
import * as prediction from "./prediction.js";
import * as api from "./service.js";

const ENOUGH = 5; // images that make a good start
const CONCURRENT = 4; // predictions under way
const PAUSE = 100; // milliseconds between two predictions of a growing drawing, or of the camera
const UNREADABLE = [413, 422]; // statuses that an image itself causes

export class Stage {
  #mode = "images"; // or "drawing"
  #photos = []; // {file, url, prediction, problem, unreadable}: images, and what the service says
  #drawings = []; // {file, url}: finished drawings, each file a promise; not the one on the pad
  #selected = null; // the photo that is shown large
  #known = new Set();
  #most = 64; // images in a request
  #pad = new Pad(find("pad"), (over) => this.#drawingChanged(over), announce);
  #camera = new Camera(find("video"));
  #watching = false; // whether the loop of #watch runs
  #stale = false; // the drawing has changed since its last prediction
  #versionSeen; // called with the version of each prediction
  #taught; // called with the response to teaching

  constructor(versionSeen, taught) {
    this.#versionSeen = versionSeen;
    this.#taught = taught;
    for (const radio of document.getElementsByName("mode")) {
      radio.addEventListener("change", () => this.switchTo(radio.value));
    }
    this.#listenToPad();
    this.#listenToCamera();
    find("clear-images").addEventListener("click", () => {
      this.#clearTray();
      this.#input.focus();
    });
    find("name").addEventListener("input", () => this.#renderHint());
    find("teach").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#teach();
    });
    onImages((files) => this.#addPhotos(files));
    this.#render();
  }

  #listenToPad() {
    const keep = () => this.#keepDrawing();
    const clear = () => this.#clearPad();
    const actions = { Enter: keep, Delete: clear, Backspace: clear };
    find("pad").addEventListener("keydown", (event) => {
      const action = actions[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    });
    find("another").addEventListener("click", keep);
    find("clear").addEventListener("click", clear);
  }

  #listenToCamera() {
    find("camera").hidden = !this.#camera.possible;
    find("camera").addEventListener("click", () => {
      if (this.#camera.on) this.#takePhoto();
      else this.#startCamera();
    });
    find("camera-off").addEventListener("click", () => {
      this.#stopCamera();
      find("camera").focus();
    });
  }

  /** Sets the names of the known classes, which complete what is typed. */
  setClasses(names, most) {
    this.#known = new Set(names);
    this.#most = most;
    refill(find("names"), names.map((value) => make("option", { value })));
    this.#renderHint();
  }

  /** Updates the predictions after the model has changed. */
  predictAgain() {
    if (this.#mode === "drawing") this.#watch();
    else this.#predictPhotos(this.#photos);
  }

  switchTo(mode) {
    this.#stopCamera();
    this.#mode = mode;
    for (const radio of document.getElementsByName("mode")) radio.checked = radio.value === mode;
    find("drawing").hidden = mode !== "drawing";
    find("images").hidden = mode !== "images";
    this.#render();
    if (mode === "drawing") this.#watch();
  }

  /** Lets the person show more images of this class. */
  addTo(name) {
    find("name").value = name;
    this.#renderHint();
    find("stage").scrollIntoView();
    const input = this.#input;
    input.focus({ preventScroll: true });
    if (input.type === "file") input.click();
  }

  // Photos

  async #addPhotos(files) {
    if (!files.length) return;
    if (this.#mode !== "images") this.switchTo("images");
    const room = Math.max(0, this.#most - this.#photos.length);
    if (files.length > room) {
      const limit = `${count(this.#most, "image")} at a time is the most`;
      notice.show([`${limit}: ${files.length - room} of these were left out.`], { error: true });
    }
    const small = await Promise.all(files.slice(0, room).map(shrink));
    const photos = small.map((file) => {
      const url = URL.createObjectURL(file);
      return { file, url, prediction: null, problem: "", unreadable: false };
    });
    if (!photos.length) return;
    this.#photos.push(...photos);
    this.#selected = photos[0];
    this.#render();
    await this.#predictPhotos(photos);
    const unreadable = photos.filter((photo) => photo.unreadable);
    if (!unreadable.length) return;
    const problems = unreadable.map(({ file, problem }) => `${file.name}: ${problem}`);
    notice.show(problems, { error: true });
  }

  /** Predicts each photo in its own request, so that an unreadable one does not fail the others. */
  async #predictPhotos(photos) {
    const waiting = [...photos];
    const worker = async () => {
      for (let photo; (photo = waiting.shift()); ) {
        await this.#predictPhoto(photo);
        this.#render();
        if (photo === this.#selected) prediction.announce(photo.prediction, photo.problem);
      }
    };
    await Promise.all(Array.from({ length: CONCURRENT }, worker));
  }

  async #predictPhoto(photo) {
    try {
      const { predictions, version } = await api.predict(photo.file);
      Object.assign(photo, { prediction: predictions[0], problem: "", unreadable: false });
      this.#versionSeen(version);
    } catch (problem) {
      const unreadable = UNREADABLE.includes(problem.status);
      Object.assign(photo, { prediction: null, problem: problem.message, unreadable });
    }
  }

  async #startCamera() {
    try {
      await this.#camera.start();
    } catch (problem) {
      const sentence = `The browser does not give access to a camera: ${problem.message}.`;
      notice.show([sentence], { error: true });
      return;
    }
    this.#render();
    this.#watch();
  }

  #stopCamera() {
    this.#camera.stop();
    this.#render();
  }

  async #takePhoto() {
    const blob = await this.#camera.capture();
    const name = `photo ${this.#photos.length + 1}.jpg`;
    await this.#addPhotos([new File([blob], name, { type: blob.type })]);
  }

  // The drawing

  #drawingChanged(over) {
    find("pad-hint").hidden = !this.#pad.empty;
    if (over) this.#renderTray();
    this.#watch();
  }

  #keepDrawing() {
    if (this.#pad.empty) {
      announce("Draw something first");
      return;
    }
    // Do not wait for the file: the person may already be drawing on.
    this.#drawings.push({ file: this.#pad.capture(), url: this.#pad.preview().toDataURL() });
    this.#clearPad();
    announce(`${count(this.#drawings.length, "drawing")} kept`);
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
      await new Promise((resolve) => setTimeout(resolve, succeeded ? PAUSE : 10 * PAUSE));
    }
    this.#watching = false;
  }

  async #predictLive(source) {
    if (!source) {
      this.#showSelected();
      return true;
    }
    try {
      const { predictions, version } = await api.predict(await source.capture());
      this.#versionSeen(version);
      if (this.#live !== source) return true; // cleared or switched off in the meantime
      prediction.show(predictions[0]);
      if (!this.#stale) prediction.announce(predictions[0]);
      return true;
    } catch (problem) {
      if (this.#live === source) prediction.show(null, problem.message);
      return false;
    }
  }

  // Teaching

  /** The items to teach with, without the drawing on the pad. */
  get #tray() {
    return this.#mode === "drawing" ? this.#drawings : this.#photos;
  }

  /** The control with which a person shows something. */
  get #input() {
    if (this.#mode === "drawing") return find("pad");
    return find(this.#camera.on ? "camera" : "files");
  }

  get #onPad() {
    return this.#mode === "drawing" && !this.#pad.empty;
  }

  get #readable() {
    return this.#tray.filter((item) => !item.unreadable);
  }

  get #total() {
    return this.#readable.length + this.#onPad;
  }

  async #teach() {
    const name = find("name").value.trim();
    if (!this.#total || !name) {
      this.#askForMissing();
      return;
    }
    const button = find("teach-button");
    if (button.ariaBusy === "true") return;
    button.ariaBusy = "true";
    const captured = this.#readable.map((item) => item.file);
    if (this.#onPad) captured.push(this.#pad.capture());
    const files = await Promise.all(captured);
    const known = this.#known.has(name);
    const taught = await notice.attempt(() => (known ? api.add : api.teach)(name, files));
    button.ariaBusy = null;
    if (!taught) return;
    find("name").value = "";
    this.#clearTray();
    this.#input.focus({ preventScroll: true }); // the next step is to show something else
    find("stage").scrollIntoView({ block: "nearest" });
    this.#taught(taught, known);
  }

  #askForMissing() {
    const show = this.#mode === "drawing" ? "Draw it first." : "Show it an image first.";
    this.#renderHint(this.#total ? "Give it a name first." : show);
    (this.#total ? find("name") : this.#input).focus();
  }

  #clearTray() {
    for (const item of this.#tray) URL.revokeObjectURL(item.url);
    this.#tray.length = 0;
    this.#selected = null;
    if (this.#mode === "drawing") this.#pad.clear();
    this.#render();
  }

  #remove(item) {
    const items = this.#tray;
    const index = items.indexOf(item);
    items.splice(index, 1);
    URL.revokeObjectURL(item.url);
    const next = Math.min(index, items.length - 1);
    if (this.#selected === item) this.#selected = items[next] ?? null;
    this.#render();
    const buttons = find("tray").querySelectorAll(".remove");
    (buttons[next] ?? find("name")).focus();
  }

  // Rendering

  #render() {
    const filming = this.#camera.on;
    find("video").hidden = !filming;
    find("camera").textContent = filming ? "Take this photo" : "Camera";
    find("camera-off").hidden = !filming;
    find("choose").hidden = filming;
    find("clear-images").hidden = !this.#photos.length;
    this.#renderLarge(filming ? null : this.#selected);
    if (!this.#live) this.#showSelected();
    this.#renderTray();
  }

  /** Shows the prediction of the selected photo; without one, what to do. */
  #showSelected() {
    const drawing = this.#mode === "drawing";
    const photo = drawing ? null : this.#selected;
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
    if (photo) frame.append(make("img", { src: photo.url, alt: photo.file.name }));
  }

  #renderTray() {
    const makeTile = this.#mode === "drawing" ? this.#drawingTile : this.#photoTile;
    const tiles = this.#tray.map((item, index) => makeTile.call(this, item, index));
    if (this.#onPad) tiles.push(make("li", { className: "tile now" }, this.#pad.preview()));
    const empty = { className: "tile slot", ariaHidden: "true" };
    while (tiles.length < ENOUGH) tiles.push(make("li", empty));
    refill(find("tray"), tiles);
    this.#renderHint();
  }

  #drawingTile(drawing, index) {
    const title = `drawing ${index + 1}`;
    const image = make("img", { src: drawing.url, alt: title });
    return make("li", { className: "tile" }, image, this.#removeButton(drawing, title));
  }

  #photoTile(photo, index) {
    const title = `image ${index + 1}`;
    const caption = this.#caption(photo);
    const select = make(
      "button",
      { type: "button", className: "choose", title: photo.file.name },
      make("img", { src: photo.url, alt: "" }),
      make("span", { textContent: caption }),
    );
    select.ariaPressed = String(photo === this.#selected && !this.#camera.on);
    select.ariaLabel = `${title}, ${photo.file.name}: ${caption}`;
    select.addEventListener("click", () => {
      this.#selected = photo;
      this.#stopCamera();
      find("tray").querySelectorAll(".choose")[index].focus();
      prediction.announce(photo.prediction, photo.problem);
    });
    const className = photo.unreadable ? "tile bad" : "tile";
    return make("li", { className }, select, this.#removeButton(photo, title));
  }

  #caption({ unreadable, prediction }) {
    if (unreadable) return "unreadable";
    if (!prediction) return "…";
    return prediction.known ? prediction.classes[0].name : "none";
  }

  #removeButton(item, title) {
    const button = make("button", { type: "button", className: "remove", textContent: "×" });
    button.ariaLabel = `Remove ${title}`;
    button.addEventListener("click", () => this.#remove(item));
    return button;
  }

  /** Says below the name how many images there are, or what is missing; labels the button. */
  #renderHint(missing = "") {
    const name = find("name").value.trim();
    const known = this.#known.has(name);
    const hint = find("teach-hint");
    const addition = `${name} is known: what you show is added to it.`;
    hint.textContent = missing || (known ? addition : this.#progress());
    hint.classList.toggle("missing", Boolean(missing));
    find("teach-button").textContent = known ? "Add" : "Teach";
    if (missing) announce(missing);
  }

  #progress() {
    const things = this.#mode === "drawing" ? "drawings" : "images";
    const total = this.#total;
    if (!total) return `Five ${things} make a good start.`;
    return total >= ENOUGH ? `${total} ${things}: good.` : `${total} of ${ENOUGH}`;
  }
}
