// The upper part of the page: images or a drawing go in, what the model sees comes out, and a name makes it a class.

import * as answer from "./answer.js";
import { Camera } from "./camera.js";
import { count, find, make, refill, say } from "./dom.js";
import { Pad } from "./drawing.js";
import { lighten, onImages } from "./incoming.js";
import * as notice from "./notice.js";
import * as api from "./service.js";

const ENOUGH = 5; // images that make a good start
const AT_ONCE = 4; // predictions under way
const REST = 100; // milliseconds between two looks at a drawing that grows, or at what the camera sees

export class Stage {
  #mode = "images";
  #images = []; // {file, url, answer, problem, unreadable}: photos, and what the service says of each
  #drawings = []; // {file, url}: finished drawings, each file a promise; the one on the pad comes on top
  #chosen = null; // the image that is shown large
  #known = new Set();
  #most = 64; // images in a request
  #pad = new Pad(find("pad"), (over) => this.#drawn(over), say);
  #camera = new Camera(find("video"));
  #looking = false;
  #stale = false; // the drawing has changed since it was looked at
  #saw; // called with each answer's version
  #learnt; // called with what teaching answered

  constructor(saw, learnt) {
    this.#saw = saw;
    this.#learnt = learnt;
    for (const radio of document.getElementsByName("mode")) radio.addEventListener("change", () => this.switchTo(radio.value));
    find("pad").addEventListener("keydown", (event) => {
      const action = { Enter: () => this.#keep(), Delete: () => this.#clearPad(), Backspace: () => this.#clearPad() }[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    });
    find("another").addEventListener("click", () => this.#keep());
    find("clear").addEventListener("click", () => this.#clearPad());
    find("clear-images").addEventListener("click", () => {
      this.#empty();
      this.#input.focus();
    });
    find("camera").hidden = !this.#camera.possible;
    find("camera").addEventListener("click", () => (this.#camera.on ? this.#snap() : this.#startCamera()));
    find("camera-off").addEventListener("click", () => {
      this.#stopCamera();
      find("camera").focus();
    });
    find("name").addEventListener("input", () => this.#invite());
    find("teach").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#teach();
    });
    onImages((files) => this.#take(files));
    this.#render();
  }

  /** What the model knows now: their names complete what is typed. */
  know(names, most) {
    this.#known = new Set(names);
    this.#most = most;
    refill(find("names"), names.map((value) => make("option", { value })));
    this.#invite();
  }

  /** The model has changed: what is on show is looked at again. */
  lookAgain() {
    if (this.#mode === "drawing") this.#look();
    else this.#judge(this.#images);
  }

  switchTo(mode) {
    this.#stopCamera();
    this.#mode = mode;
    for (const radio of document.getElementsByName("mode")) radio.checked = radio.value === mode;
    find("drawing").hidden = mode !== "drawing";
    find("images").hidden = mode !== "images";
    this.#render();
    if (mode === "drawing") this.#look();
  }

  /** Images that come next are meant for this class. */
  addTo(name) {
    find("name").value = name;
    this.#invite();
    find("stage").scrollIntoView();
    const next = this.#input;
    next.focus({ preventScroll: true });
    if (next.type === "file") next.click();
  }

  // Images

  async #take(files) {
    if (!files.length) return;
    if (this.#mode !== "images") this.switchTo("images");
    const room = Math.max(0, this.#most - this.#images.length);
    if (files.length > room) {
      notice.show([`${count(this.#most, "image")} at a time is the most: ${files.length - room} of these were left out.`], { error: true });
    }
    const light = await Promise.all(files.slice(0, room).map(lighten));
    const items = light.map((file) => ({ file, url: URL.createObjectURL(file), answer: null, problem: "", unreadable: false }));
    if (!items.length) return;
    this.#images.push(...items);
    this.#chosen = items[0];
    this.#render();
    await this.#judge(items);
    const unreadable = items.filter((item) => item.unreadable);
    if (unreadable.length) notice.show(unreadable.map(({ file, problem }) => `${file.name}: ${problem}`), { error: true });
  }

  /** Asks for each image by itself, so that one that cannot be read does not keep the others from being seen. */
  async #judge(items) {
    const waiting = [...items];
    const worker = async () => {
      for (let item; (item = waiting.shift()); ) {
        try {
          const found = await api.predict(item.file);
          Object.assign(item, { answer: found.predictions[0], problem: "", unreadable: false });
          this.#saw(found.version);
        } catch (problem) {
          Object.assign(item, { answer: null, problem: problem.message, unreadable: [413, 422].includes(problem.status) });
        }
        this.#render();
        if (item === this.#chosen) answer.announce(item.answer, item.problem);
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
  }

  async #startCamera() {
    try {
      await this.#camera.start();
    } catch (problem) {
      notice.show([`The browser does not lend its camera: ${problem.message}.`], { error: true });
      return;
    }
    this.#render();
    this.#look();
  }

  #stopCamera() {
    this.#camera.stop();
    this.#render();
  }

  async #snap() {
    const image = await this.#camera.image();
    await this.#take([new File([image], `photo ${this.#images.length + 1}.jpg`, { type: image.type })]);
  }

  // The drawing

  #drawn(over) {
    find("pad-hint").hidden = !this.#pad.empty;
    if (over) this.#renderTray();
    this.#look();
  }

  #keep() {
    if (this.#pad.empty) {
      say("Draw something first");
      return;
    }
    this.#drawings.push({ file: this.#pad.image(), url: this.#pad.preview().toDataURL() }); // nothing is waited for: a quick hand draws on
    this.#clearPad();
    say(`${count(this.#drawings.length, "drawing")} kept`);
  }

  #clearPad() {
    this.#pad.clear();
    find("pad").focus({ preventScroll: true });
    say("Cleared");
  }

  // Looking at what changes

  get #live() {
    if (this.#mode === "drawing") return this.#pad.empty ? null : this.#pad;
    return this.#camera.on ? this.#camera : null;
  }

  /** One question at a time, and a rest between them: what changes meanwhile is in the next. */
  async #look() {
    this.#stale = true;
    if (this.#looking) return;
    this.#looking = true;
    while (this.#stale || this.#camera.on) {
      this.#stale = false;
      const well = await this.#lookOnce(this.#live);
      await new Promise((resolve) => setTimeout(resolve, well ? REST : 10 * REST));
    }
    this.#looking = false;
  }

  async #lookOnce(source) {
    if (!source) {
      this.#showAnswer();
      return true;
    }
    try {
      const { predictions, version } = await api.predict(await source.image());
      this.#saw(version);
      if (this.#live !== source) return true; // cleared, or switched off meanwhile
      answer.show(predictions[0]);
      if (!this.#stale) answer.announce(predictions[0]);
      return true;
    } catch (problem) {
      if (this.#live === source) answer.show(null, problem.message);
      return false;
    }
  }

  // Teaching

  get #tray() {
    return this.#mode === "drawing" ? this.#drawings : this.#images;
  }

  /** What a person shows something with. */
  get #input() {
    return find(this.#mode === "drawing" ? "pad" : this.#camera.on ? "camera" : "files");
  }

  get #onPad() {
    return this.#mode === "drawing" && !this.#pad.empty;
  }

  get #total() {
    return this.#tray.filter((item) => !item.unreadable).length + this.#onPad;
  }

  async #teach() {
    const name = find("name").value.trim();
    const drawing = this.#mode === "drawing";
    if (!this.#total || !name) {
      this.#invite(this.#total ? "Give it a name first." : drawing ? "Draw it first." : "Show it an image first.");
      (this.#total ? find("name") : this.#input).focus();
      return;
    }
    const button = find("teach-button");
    if (button.ariaBusy === "true") return;
    button.ariaBusy = "true";
    const shown = this.#tray.filter((item) => !item.unreadable).map((item) => item.file);
    if (this.#onPad) shown.push(this.#pad.image());
    const files = await Promise.all(shown);
    const known = this.#known.has(name);
    const taught = await notice.attempt(() => (known ? api.add : api.teach)(name, files));
    button.ariaBusy = null;
    if (!taught) return;
    find("name").value = "";
    this.#empty();
    this.#input.focus({ preventScroll: true }); // the next thing is to show it another
    find("stage").scrollIntoView({ block: "nearest" });
    this.#learnt(taught, known);
  }

  /** Away with what was taught with. */
  #empty() {
    for (const item of this.#tray) URL.revokeObjectURL(item.url);
    this.#tray.length = 0;
    this.#chosen = null;
    if (this.#mode === "drawing") this.#pad.clear();
    this.#render();
  }

  #remove(item) {
    const items = this.#tray;
    const place = items.indexOf(item);
    items.splice(place, 1);
    URL.revokeObjectURL(item.url);
    if (this.#chosen === item) this.#chosen = items[Math.min(place, items.length - 1)] ?? null;
    this.#render();
    const next = find("tray").querySelectorAll(".remove")[Math.min(place, items.length - 1)];
    (next ?? find("name")).focus();
  }

  // What is seen

  #render() {
    const filming = this.#camera.on;
    find("video").hidden = !filming;
    find("camera").textContent = filming ? "Take this image" : "Camera";
    find("camera-off").hidden = !filming;
    find("choose").hidden = filming;
    find("clear-images").hidden = !this.#images.length;
    this.#showLarge(filming ? null : this.#chosen);
    if (!this.#live) this.#showAnswer();
    this.#renderTray();
  }

  /** The answer to the image that is shown large; with none, what to do. */
  #showAnswer() {
    const chosen = this.#mode === "images" ? this.#chosen : null;
    const resting = this.#mode === "drawing" ? "Draw, and its name appears here." : "Show an image, and its name appears here.";
    answer.show(chosen?.answer, chosen ? chosen.problem || "Looking …" : resting);
  }

  #showLarge(item) {
    const shown = find("shown");
    find("drop-hint").hidden = Boolean(item) || this.#camera.on;
    const image = shown.querySelector("img");
    if (image?.src === item?.url) return;
    image?.remove();
    if (item) shown.append(make("img", { src: item.url, alt: item.file.name }));
  }

  #renderTray() {
    const tiles = this.#tray.map((item, index) => (this.#mode === "drawing" ? this.#drawingTile(item, index) : this.#imageTile(item, index)));
    if (this.#onPad) tiles.push(make("li", { className: "tile now" }, this.#pad.preview()));
    const slots = Array.from({ length: Math.max(0, ENOUGH - tiles.length) }, () => make("li", { className: "tile slot", ariaHidden: "true" }));
    refill(find("tray"), [...tiles, ...slots]);
    this.#invite();
  }

  #drawingTile(item, index) {
    const title = `drawing ${index + 1}`;
    return make("li", { className: "tile" }, make("img", { src: item.url, alt: title }), this.#removeButton(item, title));
  }

  #imageTile(item, index) {
    const best = item.answer;
    const caption = item.unreadable ? "unreadable" : !best ? "…" : best.known ? best.classes[0].name : "none";
    const title = `image ${index + 1}`;
    const image = make("img", { src: item.url, alt: "" });
    const choose = make("button", { type: "button", className: "choose", title: item.file.name }, image, make("span", { textContent: caption }));
    choose.ariaPressed = String(item === this.#chosen && !this.#camera.on);
    choose.ariaLabel = `${title}, ${item.file.name}: ${caption}`;
    choose.addEventListener("click", () => {
      this.#chosen = item;
      this.#stopCamera();
      find("tray").querySelectorAll(".choose")[index].focus();
      answer.announce(best, item.problem);
    });
    return make("li", { className: item.unreadable ? "tile bad" : "tile" }, choose, this.#removeButton(item, title));
  }

  #removeButton(item, title) {
    const button = make("button", { type: "button", className: "remove", textContent: "×", ariaLabel: `Remove ${title}` });
    button.addEventListener("click", () => this.#remove(item));
    return button;
  }

  /** The line below the name: how many there are, or what is missing, and what the button will do. */
  #invite(missing = "") {
    const name = find("name").value.trim();
    const known = this.#known.has(name);
    const things = this.#mode === "drawing" ? "drawings" : "images";
    const total = this.#total;
    const progress = total >= ENOUGH ? `${total} ${things}: good.` : total ? `${total} of ${ENOUGH}` : `Five ${things} make a good start.`;
    const hint = find("teach-hint");
    hint.textContent = missing || (known ? `${name} is known: what you show is added to it.` : progress);
    hint.classList.toggle("missing", Boolean(missing));
    find("teach-button").textContent = known ? "Add" : "Teach";
    if (missing) say(missing);
  }
}
