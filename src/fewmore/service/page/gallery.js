// The classes with their thumbnails: see, add and remove images, rename, forget. The taught ones
// come first, the newest before the others.

import * as api from "./service.js";
import { cleanName, count, find, make, refill } from "./dom.js";
import * as notice from "./notice.js";

const PAGE = 12; // cards shown at first, and with every "Show more"
const SEARCHABLE = 12; // with more classes there is a search field
const THUMBNAILS = 5;
const NO_MATCH = "No class has this in its name.";
const NO_CLASSES = "Nothing yet. Show it something, and name it.";

export class Gallery {
  #classes = [];
  #cards = new Map(); // name → {json, element}: an unchanged card stays, with an open rename in it
  #open = new Set(); // names of classes whose images are all shown
  #thumbnails = new Map(); // path → promise of a blob: address
  #loading = null; // of the images of an open card
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
    const taught = classes.filter((known) => known.taught).reverse();
    this.#classes = [...taught, ...classes.filter((known) => !known.taught)];
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
    let strip = this.#strip(known);
    const card = make("li", { className: "card" }, strip, title, facts);
    const images = make("button", { type: "button", className: "link", textContent: "Images" });
    images.ariaLabel = `Images of ${known.name}`;
    images.ariaExpanded = "false";
    const toggle = (open) => {
      images.ariaExpanded = String(open);
      card.classList.toggle("open", open);
      if (open) this.#open.add(known.name);
      else this.#open.delete(known.name);
      if (open) this.#loading = this.#showImages(known, strip);
      else strip.replaceWith((strip = this.#strip(known)));
    };
    images.addEventListener("click", () => toggle(images.ariaExpanded === "false"));
    const actions = this.#actions(known, title);
    actions.prepend(images);
    card.append(actions);
    if (this.#open.has(known.name)) toggle(true);
    return card;
  }

  /** Shows all images of a class in place of some, each with a button to remove it. */
  async #showImages(known, strip, offset = 0) {
    const page = await notice.attempt(() => api.images(known.name, offset));
    if (!page) return;
    const tiles = page.listed.map((image) => this.#imageTile(known.name, image));
    const all = offset ? [...strip.querySelectorAll(".tile"), ...tiles] : tiles;
    const shown = offset + tiles.length;
    if (shown < page.total) {
      const more = make("button", { type: "button", className: "link", textContent: "Show more" });
      more.addEventListener("click", () => this.#showImages(known, strip, shown));
      all.push(more);
    }
    const others = page.images - page.total;
    if (others > 0) {
      const text = `${count(others, "image")} that it learnt as features cannot be shown.`;
      all.push(make("p", { className: "small", textContent: text }));
    }
    strip.replaceChildren(...all);
  }

  #imageTile(name, { id, thumbnail, removable }) {
    const blank = () => make("span", { className: "blank", textContent: "?" });
    const shown = thumbnail ? this.#thumbnail(thumbnail) : blank();
    const tile = make("div", { className: "tile" }, shown);
    if (!removable) return tile;
    const remove = make("button", { type: "button", className: "remove", textContent: "×" });
    remove.ariaLabel = `Remove this image from ${name}`;
    remove.addEventListener("click", () => this.#removeImage(name, id, tile));
    tile.append(remove);
    return tile;
  }

  /** Removes an image without asking: Undo brings it back. */
  async #removeImage(name, id, tile) {
    const index = [...tile.parentElement.children].indexOf(tile);
    const removed = await notice.attempt(() => api.removeImage(name, id, this.#version()));
    if (!removed) return;
    await this.#changed(removed, `One image of ${name} is removed.`);
    const card = this.#cards.get(name)?.element;
    await this.#loading;
    const buttons = card?.querySelectorAll(".strip .remove") ?? [];
    const next = buttons[Math.min(index, buttons.length - 1)];
    (next ?? card?.querySelector(".actions button") ?? find("classes-title")).focus();
  }

  /** Shows some thumbnails; without any, the first letter of the name. */
  #strip({ name, thumbnails }) {
    const images = thumbnails.slice(0, THUMBNAILS).map((path) => this.#thumbnail(path));
    const initial = { className: "blank", textContent: [...name][0], ariaHidden: "true" };
    const content = images.length ? images : [make("span", initial)];
    return make("div", { className: "strip" }, ...content);
  }

  #actions(known, title) {
    const button = (text, run, more = "") => {
      const ariaLabel = `${text} ${more}${known.name}`;
      const properties = { type: "button", className: "link", textContent: text, ariaLabel };
      const element = make("button", properties);
      element.addEventListener("click", run);
      return element;
    };
    const add = button("Add", () => this.#add(known.name), "images to ");
    const rename = button("Rename", () => this.#rename(known, title, rename));
    rename.classList.add("rename-button");
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
      const name = cleanName(input.value);
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
    if (this.#open.delete(known.name)) this.#open.add(name);
    const renamed = await notice.attempt(() => api.rename(known.name, name, this.#version()));
    if (!renamed) return false;
    await this.#changed(renamed, `${known.name} is called ${renamed.name} now.`);
    const card = this.#cards.get(renamed.name)?.element;
    (card?.querySelector(".rename-button") ?? find("classes-title")).focus();
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
