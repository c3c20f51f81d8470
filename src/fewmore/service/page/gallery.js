// The classes with their thumbnails: rename, forget, add images. The newest come first.

import * as api from "./service.js";
import { count, find, make, refill } from "./dom.js";
import * as notice from "./notice.js";

const PAGE = 12; // cards shown at first, and with every "Show more"
const SEARCHABLE = 12; // classes from which on a search field helps
const THUMBNAILS = 5;

export class Gallery {
  #classes = [];
  #cards = new Map(); // name → {json, element}: a card that is still true stays, with an open rename in it
  #images = new Map(); // address of a thumbnail → promise of its blob: address
  #private = false; // reading needs the token, too
  #limit = PAGE;
  #add;
  #changed;

  /** add(name) is asked for more images; changed(sentence) is told after a change. */
  constructor(add, changed) {
    this.#add = add;
    this.#changed = changed;
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
    const found = this.#classes.filter(({ name }) => name.toLocaleLowerCase().includes(query));
    const cards = new Map();
    for (const one of found.slice(0, this.#limit)) {
      const json = JSON.stringify(one);
      const card = this.#cards.get(one.name);
      cards.set(one.name, card?.json === json ? card : { json, element: this.#card(one) });
    }
    this.#cards = cards;
    refill(find("classes"), [...cards.values()].map(({ element }) => element));
    find("more").hidden = found.length <= this.#limit;
    find("classes-empty").hidden = found.length > 0;
    find("classes-empty").textContent = this.#classes.length ? "No class has this in its name." : "Nothing yet. Show it something, and name it.";
  }

  #card(one) {
    const title = make("h3", { textContent: one.name, title: one.name });
    const facts = make("p", { className: "small", textContent: count(one.images, "image") + (one.taught ? " · taught" : "") });
    const images = one.thumbnails.slice(-THUMBNAILS).map((address) => this.#thumbnail(address));
    const button = (text, run, to = "") => {
      const element = make("button", { type: "button", className: "link", textContent: text, ariaLabel: `${text} ${to}${one.name}` });
      element.addEventListener("click", run);
      return element;
    };
    const renaming = button("Rename", () => this.#rename(one, title, renaming));
    const adding = button("Add images", () => this.#add(one.name), "to ");
    const forgetting = button("Forget", () => this.#forget(one.name));
    const actions = make("div", { className: "actions" }, adding, renaming, forgetting);
    const initial = make("span", { className: "blank", textContent: [...one.name][0], ariaHidden: "true" });
    const strip = make("div", { className: "strip" }, ...(images.length ? images : [initial]));
    return make("li", { className: "card" }, strip, title, facts, actions);
  }

  #thumbnail(address) {
    const image = make("img", { alt: "", width: 96, height: 96, loading: "lazy" });
    if (!this.#private) {
      image.src = address.replace(/^\//, "");
      return image;
    }
    if (!this.#images.has(address)) this.#images.set(address, api.file(address));
    this.#images.get(address).then((url) => (image.src = url), () => this.#images.delete(address));
    return image;
  }

  #rename(one, title, opener) {
    const input = make("input", { value: one.name, autocomplete: "off", spellcheck: false, ariaLabel: `New name of ${one.name}` });
    const cancel = make("button", { type: "button", className: "link", textContent: "Cancel" });
    const form = make("form", { className: "rename", noValidate: true }, input, make("button", { className: "link", textContent: "Save" }), cancel);
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
      if (name === one.name) return close();
      const answer = await notice.attempt(() => api.rename(one.name, name));
      if (!answer) return input.focus();
      await this.#changed(`${one.name} is called ${answer.name} now.`);
      const card = this.#cards.get(answer.name)?.element;
      (card?.querySelectorAll(".actions button")[1] ?? find("classes-title")).focus();
    });
    title.replaceWith(form);
    opener.disabled = true;
    input.select();
    input.focus();
  }

  /** At once, without a question: Undo brings it back. */
  async #forget(name) {
    const place = [...this.#cards.keys()].indexOf(name);
    const answer = await notice.attempt(() => api.forget(name));
    if (!answer) return;
    await this.#changed(`${answer.name} is forgotten.`);
    const next = find("classes").children[place]?.querySelector(".actions button:last-child");
    (next ?? find("classes-title")).focus();
  }
}
