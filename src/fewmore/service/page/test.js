// Tests the model on a folder with one sub-folder a class: how many are right, and which are not.

import * as api from "./service.js";
import { announce, count, find, make, percent, refill } from "./dom.js";
import { onDrop, onFolder, shrink } from "./incoming.js";
import * as notice from "./notice.js";

const BATCH = 16; // images in a request
const CONCURRENT = 2; // requests under way
const LISTED = 200; // mistakes in the table
const NONE = "none of these";

export class Test {
  #known; // returns the names of all classes
  #test = { stopped: true }; // the latest
  #urls = []; // of the images in the table

  constructor(known) {
    this.#known = known;
    const take = (files, folders) => this.#start(files, folders);
    onFolder(find("test-folder"), take);
    onDrop(find("test"), find("test"), take);
    find("test-stop").addEventListener("click", () => {
      this.#test.stopped = true;
      find("test-folder").focus();
    });
  }

  async #start(files, folders) {
    if (!folders.length) {
      const sentence = "Choose a folder that has one sub-folder of images for each class.";
      notice.show([sentence], { error: true });
      return;
    }
    const images = folders.flatMap(({ name, files: of }) => of.map((file) => ({ name, file })));
    this.#test.stopped = true; // the one before, if it still runs
    const test = (this.#test = { images, results: [], stopped: false });
    find("test-progress").max = images.length;
    this.#showRunning(true);
    const worked = await notice.attempt(() => this.#predictAll(test));
    if (test !== this.#test) return; // the next one is shown
    this.#showRunning(false);
    if (worked || test.results.length) this.#showResults(test.results, images.length);
  }

  async #predictAll(test) {
    const waiting = [...test.images];
    const worker = async () => {
      while (waiting.length && !test.stopped) {
        const some = waiting.splice(0, BATCH);
        test.results.push(...(await this.#predict(some)));
        if (test === this.#test) find("test-progress").value = test.results.length;
      }
    };
    try {
      await Promise.all(Array.from({ length: CONCURRENT }, worker));
    } finally {
      test.stopped = true; // if one worker fails, the other one ends, too
    }
    return true;
  }

  /** Predicts some images; where one cannot be read, each alone. */
  async #predict(images) {
    try {
      const files = await Promise.all(images.map(({ file }) => shrink(file)));
      const { predictions } = await api.predict(files);
      return images.map((image, index) => this.#judge(image, predictions[index]));
    } catch (problem) {
      if (!problem.isOfImage) throw problem;
      if (images.length === 1) return [{ ...images[0], unreadable: true }];
      const alone = await Promise.all(images.map((image) => this.#predict([image])));
      return alone.flat();
    }
  }

  /** Images of a class that is not known are right if they are seen as none of these. */
  #judge(image, prediction) {
    const [{ name, confidence }] = prediction.classes;
    const guess = prediction.known ? name : NONE;
    const truth = this.#known().includes(image.name) ? image.name : NONE;
    return { ...image, guess, confidence, right: guess === truth };
  }

  #showRunning(running) {
    find("test-progress").hidden = find("test-stop").hidden = !running;
    find("test-progress").value = 0;
    if (running) find("test-result").hidden = true;
  }

  #showResults(results, total) {
    const read = results.filter(({ unreadable }) => !unreadable);
    const right = read.filter((result) => result.right);
    const mistakes = read.filter((result) => !result.right);
    mistakes.sort((one, other) => other.confidence - one.confidence);
    const share = read.length ? ` (${percent(right.length / read.length)})` : "";
    const sentence = `${right.length} of ${count(read.length, "image")} right${share}.`;
    const notes = [];
    const unreadable = results.length - read.length;
    if (unreadable) notes.push(`${count(unreadable, "image")} could not be read.`);
    if (results.length < total) notes.push(`Stopped: ${total - results.length} were not tried.`);
    const unknown = new Set(read.map(({ name }) => name).filter((name) => !this.#knows(name)));
    if (unknown.size) {
      const names = [...unknown].slice(0, 5).join(", ");
      notes.push(`Not known, so right as “${NONE}”: ${names}${unknown.size > 5 ? ", …" : ""}.`);
    }
    find("test-sum").textContent = sentence;
    find("test-notes").textContent = notes.join(" ");
    this.#showMistakes(mistakes);
    this.#showClasses(read);
    find("test-result").hidden = false;
    announce(sentence);
  }

  #knows(name) {
    return this.#known().includes(name);
  }

  #showMistakes(mistakes) {
    for (const url of this.#urls) URL.revokeObjectURL(url);
    this.#urls = [];
    const rows = mistakes.slice(0, LISTED).map(({ file, name, guess, confidence }) => {
      const src = URL.createObjectURL(file);
      this.#urls.push(src);
      const image = make("img", { src, alt: file.name, width: 48, height: 48, loading: "lazy" });
      const sure = guess === NONE ? "" : percent(confidence);
      const cells = [image, name, guess, sure].map((content) => make("td", {}, content));
      return make("tr", {}, ...cells);
    });
    refill(find("test-mistakes").tBodies[0], rows);
    find("test-mistakes").hidden = !rows.length;
    const more = mistakes.length - rows.length;
    find("test-more").hidden = more <= 0;
    find("test-more").textContent = `And ${count(more, "mistake")} more.`;
  }

  #showClasses(results) {
    const classes = new Map();
    for (const { name, right } of results) {
      const [good, all] = classes.get(name) ?? [0, 0];
      classes.set(name, [good + right, all + 1]);
    }
    const worst = [...classes].sort(([, a], [, b]) => a[0] / a[1] - b[0] / b[1]);
    const rows = worst.map(([name, [good, all]]) => {
      const cells = [name, `${good} of ${all}`, percent(good / all)];
      return make("tr", {}, ...cells.map((textContent) => make("td", { textContent })));
    });
    refill(find("test-classes").tBodies[0], rows);
  }
}
