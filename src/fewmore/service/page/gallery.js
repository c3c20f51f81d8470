// The classes with their thumbnails: rename, forget, add images. The newest come first.

import * as api from "./service.js";
import { count, find, make, refill } from "./dom.js";
import * as notice from "./notice.js";

const PAGE = 12; // cards shown at first, and with every "Show more"
const SEARCHABLE = 12; // with more classes there is a search field
const THUMBNAILS = 5;
const NO_MATCH = "No class has this in its name.";
const NO_CLASSES = "Nothing yet. Show it something, and name it.";

export class Gallery {
  #classes = [];
  #cards = new Map(); // name → {json, element}: an unchanged card stays, with an open rename in it
  #thumbnails = new Map(); // path → promise of a blob: address
  #private = false; // reading needs the token too
  #limit = PAGE;
  #add;
  #changed;
  #version;

  /**
   * Calls add(name) when the person wants to add images, changed(response, sentence) after a
   * change, and version() to know which version the page shows.
   */
  constructor(add, changed, version) {
    this.#add = add;
    this.#changed = changed;
    this.#version = version;
    find("search").addEventListener("input", () => {
      this.#limit = PAGE;
      this.#render();
    });
    find("more").addEventListener("click", () => {
      const first = find("classes").children.length;
      this.#limit += PAGE;
      this.#render();
      find("classes").children[first]?.querySelector("button").focus();
    });
  }

  show(classes, needsToken) {
    this.#classes = [...classes].reverse();
    this.#private = needsToken;
    this.#render();
  }

  #render() {
    find("search-field").hidden = this.#classes.length <= SEARCHABLE;
    const query = find("search").value.trim().toLocaleLowerCase();
    const matching = this.#classes.filter(({ name }) => name.toLocaleLowerCase().includes(query));
    const cards = new Map();
    for (const known of matching.slice(0, this.#limit)) {
      const json = JSON.stringify(known);
      const card = this.#cards.get(known.name);
      cards.set(known.name, card?.json === json ? card : { json, element: this.#card(known) });
    }
    this.#cards = cards;
    refill(find("classes"), [...cards.values()].map(({ element }) => element));
    find("more").hidden = matching.length <= this.#limit;
    find("classes-empty").hidden = matching.length > 0;
    find("classes-empty").textContent = this.#classes.length ? NO_MATCH : NO_CLASSES;
  }

  #card(known) {
    const title = make("h3", { textContent: known.name, title: known.name });
    const facts = make("p", {
      className: "small",
      textContent: count(known.images, "image") + (known.taught ? " · taught" : ""),
    });
    const content = [this.#strip(known), title, facts, this.#actions(known, title)];
    return make("li", { className: "card" }, ...content);
  }

  /** Shows the newest thumbnails; without any, the first letter of the name. */
  #strip({ name, thumbnails }) {
    const images = thumbnails.slice(-THUMBNAILS).map((path) => this.#thumbnail(path));
    const initial = { className: "blank", textContent: [...name][0], ariaHidden: "true" };
    const content = images.length ? images : [make("span", initial)];
    return make("div", { className: "strip" }, ...content);
  }

  #actions(known, title) {
    const button = (text, run, to = "") => {
      const ariaLabel = `${text} ${to}${known.name}`;
      const properties = { type: "button", className: "link", textContent: text, ariaLabel };
      const element = make("button", properties);
      element.addEventListener("click", run);
      return element;
    };
    const add = button("Add images", () => this.#add(known.name), "to ");
    const rename = button("Rename", () => this.#rename(known, title, rename));
    const forget = button("Forget", () => this.#forget(known.name));
    return make("div", { className: "actions" }, add, rename, forget);
  }

  #thumbnail(path) {
    const image = make("img", { alt: "", width: 96, height: 96, loading: "lazy" });
    if (!this.#private) {
      image.src = path.replace(/^\//, "");
      return image;
    }
    if (!this.#thumbnails.has(path)) this.#thumbnails.set(path, api.file(path));
    const forget = () => this.#thumbnails.delete(path); // to try again next time
    this.#thumbnails.get(path).then((url) => (image.src = url), forget);
    return image;
  }

  /** Replaces the title by a form; `opener` is the button that gets the focus back. */
  #rename(known, title, opener) {
    const label = { ariaLabel: `New name of ${known.name}` };
    const text = { value: known.name, autocomplete: "off", spellcheck: false };
    const input = make("input", { ...text, ...label });
    const save = make("button", { className: "link", textContent: "Save" });
    const cancel = make("button", { type: "button", className: "link", textContent: "Cancel" });
    const form = make("form", { className: "rename", noValidate: true }, input, save, cancel);
    const close = () => {
      form.replaceWith(title);
      opener.disabled = false;
      opener.focus();
    };
    cancel.addEventListener("click", close);
    form.addEventListener("keydown", (event) => event.key === "Escape" && close());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const name = input.value.trim();
      if (name === known.name) close();
      else if (!(await this.#renameTo(known, name))) input.focus();
    });
    title.replaceWith(form);
    opener.disabled = true;
    input.select();
    input.focus();
  }

  /** Returns whether it worked. */
  async #renameTo(known, name) {
    const renamed = await notice.attempt(() => api.rename(known.name, name, this.#version()));
    if (!renamed) return false;
    await this.#changed(renamed, `${known.name} is called ${renamed.name} now.`);
    const card = this.#cards.get(renamed.name)?.element;
    (card?.querySelectorAll(".actions button")[1] ?? find("classes-title")).focus();
    return true;
  }

  /** Forgets a class without asking: Undo brings it back. */
  async #forget(name) {
    const index = [...this.#cards.keys()].indexOf(name);
    const forgotten = await notice.attempt(() => api.forget(name, this.#version()));
    if (!forgotten) return;
    await this.#changed(forgotten, `${forgotten.name} is forgotten.`);
    const next = find("classes").children[index]?.querySelector(".actions button:last-child");
    (next ?? find("classes-title")).focus();
  }
}
