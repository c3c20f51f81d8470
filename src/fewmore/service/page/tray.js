// What is to be taught: one class or several side by side, each with its images and its name.

import { announce, cleanName, count, find, make, refill } from "./dom.js";
import { shrink } from "./incoming.js";

const ENOUGH = 5; // images that make a good start
const MOST_BYTES = 100_000_000; // that are stored in the browser
const SHOWN = 24; // images of a class that are shown; the others are counted

let numbers = 0; // of all groups so far, for the ids of their fields

export class Tray {
  #groups = [];
  #active; // the group that gets what is shown next
  #selected = null; // the item that is shown large
  #known = new Set();
  #on;

  /**
   * `on` has functions: changed() after every change, selected(item) when a person picks an image,
   * pending() for the preview of an unfinished drawing, or null, and word() for what is shown:
   * "image" or "drawing".
   */
  constructor(on) {
    this.#on = on;
    this.#activate(this.#addGroup());
    find("another-class").addEventListener("click", () => {
      const free = this.#groups.find((group) => !group.items.length && !nameOf(group));
      this.#activate(free ?? this.#addGroup());
      this.#active.input.focus();
      this.#changed();
    });
  }

  get selected() {
    return this.#selected;
  }

  set selected(item) {
    this.#selected = item;
    for (const group of this.#groups) for (const each of group.items) this.update(each);
  }

  /** The images of the class that gets the next ones, as far as they are shown. */
  get shown() {
    return this.#active.items.slice(0, SHOWN);
  }

  get isEmpty() {
    return this.#groups.every((group) => !group.items.length);
  }

  setKnown(names) {
    this.#known = new Set(names);
    this.showHint();
  }

  // What is in it

  /** Adds images to the class that gets the next ones; returns their items. */
  add(images, group = this.#active) {
    const items = images.map(({ file, title, drawn = false, url = URL.createObjectURL(file) }) => {
      return { file, title, drawn, url, prediction: null, problem: "", unreadable: false };
    });
    for (const item of items) item.element = this.#makeTile(item);
    group.items.push(...items);
    this.#changed();
    return items;
  }

  /** Adds a class for each folder, with its name. */
  addFolders(folders) {
    let first = null;
    for (const { name, files } of folders) {
      const same = this.#groups.find((group) => nameOf(group) === name);
      const free = this.#groups.find((group) => !group.items.length && !nameOf(group));
      const group = same ?? free ?? this.#addGroup();
      group.input.value = name;
      this.add(files.map((file) => ({ file, title: file.name })), group);
      first ??= group;
    }
    if (first) this.#activate(first);
    this.#changed();
  }

  /** Sets the name of the class that gets the next images. */
  setName(name) {
    const same = this.#groups.find((group) => nameOf(group) === name);
    const free = [this.#active, ...this.#groups].find((group) => !group.items.length);
    this.#activate(same ?? free ?? this.#addGroup());
    this.#active.input.value = name;
    this.#changed();
  }

  clear() {
    for (const group of [...this.#groups]) this.#drop(group);
    this.#changed();
  }

  #discard(group, items) {
    const gone = new Set(items);
    for (const item of gone) URL.revokeObjectURL(item.url);
    group.items = group.items.filter((item) => !gone.has(item));
    if (gone.has(this.#selected)) this.#selected = null;
  }

  /** Removes a class and its images; one empty class always stays. */
  #drop(group) {
    this.#discard(group, group.items);
    const index = this.#groups.indexOf(group);
    this.#groups.splice(index, 1);
    if (!this.#groups.length) this.#addGroup();
    if (group === this.#active) this.#activate(this.#groups[Math.max(0, index - 1)]);
  }

  #remove(item) {
    const group = this.#groups.find(({ items }) => items.includes(item));
    const index = group.items.indexOf(item);
    group.items.splice(index, 1);
    URL.revokeObjectURL(item.url);
    const next = group.items[Math.min(index, group.items.length - 1)];
    if (this.#selected === item) this.#selected = next ?? null;
    this.#changed();
    (next?.element.querySelector(".remove") ?? group.input).focus();
  }

  #changed() {
    this.render();
    this.#on.changed();
  }

  // To and from the browser's storage

  /** Returns all of it as a value that can be stored; null if there is nothing. Not too much. */
  async stored() {
    if (this.isEmpty && !this.#groups.some(nameOf)) return null;
    const groups = this.#groups.map(async (group) => {
      const items = group.items.map(async ({ file, title, drawn }) => {
        return { file: await file, title, drawn };
      });
      return { name: group.input.value, items: await Promise.all(items) };
    });
    const value = { groups: await Promise.all(groups), active: this.#groups.indexOf(this.#active) };
    const files = value.groups.flatMap(({ items }) => items.map(({ file }) => file));
    const bytes = files.reduce((sum, { size }) => sum + size, 0);
    if (bytes > MOST_BYTES) throw new Error("The browser would copy all of it with each change.");
    return value;
  }

  /** Adds what was stored; what the person has begun meanwhile stays what is worked on. */
  restore({ groups, active }) {
    const begun = !this.isEmpty || this.#groups.some(nameOf);
    const restored = groups.map(({ name, items }) => {
      const free = this.#groups.find((group) => !group.items.length && !nameOf(group));
      const group = free ?? this.#addGroup();
      group.input.value = name;
      this.add(items, group);
      return group;
    });
    if (!begun) {
      this.#activate(restored[active] ?? this.#groups[0]);
      this.#selected = this.#active.items[0] ?? null;
    }
    this.#changed();
  }

  // Teaching

  /**
   * Returns the classes to teach as [{ name, known, titles, hasDrawing, images, … }], where images
   * gives a promise of files and titles are what messages call them; null if something is missing,
   * after saying so. discard(count) removes the first ones from the tray, leaveOut(indices, problem)
   * marks some as unreadable, and done() removes all that was there. `onPad` is a file of the
   * unfinished drawing, or null.
   */
  lessons(onPad) {
    const extra = (group) => (onPad && group === this.#active ? [onPad] : []);
    const readable = (group) => group.items.filter((item) => !item.unreadable);
    const total = (group) => readable(group).length + extra(group).length;
    const filled = this.#groups.filter(total);
    const unnamed = filled.find((group) => !nameOf(group));
    const bare = this.#groups.find((group) => nameOf(group) && !total(group));
    if (!filled.length || bare) {
      const what = this.#on.word() === "drawing" ? "Draw it first." : "Show it an image first.";
      if (bare) this.#activate(bare);
      this.showHint(filled.length ? `${nameOf(bare)}: ${what}` : what);
      return null;
    }
    if (unnamed) {
      this.showHint("Give it a name first.");
      unnamed.input.focus();
      return null;
    }
    return filled.map((group) => {
      const all = [...group.items];
      const items = readable(group);
      const files = [...items.map((item) => item.file), ...extra(group)];
      const titles = items.map((item) =>
        item.drawn ? `drawing ${all.indexOf(item) + 1}` : item.title,
      );
      return {
        name: nameOf(group),
        titles: [...titles, ...extra(group).map(() => "the drawing")],
        known: this.#known.has(nameOf(group)),
        hasDrawing: extra(group).length > 0,
        images: () => Promise.all(files.map(async (file) => shrink(await file))),
        discard: (count) => {
          this.#discard(group, items.slice(0, count));
          this.#changed();
        },
        leaveOut: (indices, problem) => {
          // A drawing that is on the pad is no item yet.
          for (const item of indices.map((index) => items[index]).filter(Boolean)) {
            Object.assign(item, { prediction: null, problem, unreadable: true });
          }
          this.#changed();
        },
        done: () => {
          if (!this.#groups.includes(group)) return; // it was removed in the meantime
          this.#discard(group, all);
          if (!group.items.length) this.#drop(group);
          this.#changed();
        },
      };
    });
  }

  // Rendering

  #addGroup() {
    const id = `name-${++numbers}`;
    const input = make("input", {
      id,
      placeholder: "What is it called?",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: false,
    });
    input.setAttribute("list", "names");
    input.setAttribute("aria-describedby", "teach-hint");
    const label = make("label", { htmlFor: id, className: "visually-hidden" });
    const tray = make("ul", { className: "tray" });
    const remove = make("button", { type: "button", className: "icon", textContent: "×" });
    const field = make("div", { className: "field" }, label, input, remove);
    const element = make("li", { className: "group" }, tray, field);
    const empty = { className: "tile slot", ariaHidden: "true" };
    const slots = Array.from({ length: ENOUGH }, () => make("li", empty));
    const group = { element, tray, slots, input, label, remove, items: [] };
    remove.addEventListener("click", () => {
      this.#drop(group);
      this.#changed();
      this.#active.input.focus();
    });
    const activate = () => this.#active !== group && this.#activate(group, true);
    element.addEventListener("focusin", activate);
    element.addEventListener("pointerup", activate);
    input.addEventListener("input", () => this.#changed());
    this.#groups.push(group);
    return group;
  }

  #activate(group, spoken = false) {
    this.#active = group;
    this.render();
    this.#on.changed();
    if (!spoken) return;
    const name = nameOf(group) || `class ${this.#groups.indexOf(group) + 1}`;
    announce(`What you show now is for ${name}`);
  }

  render() {
    const several = this.#groups.length > 1;
    this.#groups.forEach((group, index) => {
      const of = several ? `class ${index + 1}` : "the class";
      group.label.textContent = `Name of ${of}`;
      group.tray.ariaLabel = several ? `Images of ${of}` : "Images to teach with";
      group.remove.hidden = !several;
      group.remove.ariaLabel = `Remove ${of}`;
      group.element.classList.toggle("active", several && group === this.#active);
      this.#renderTiles(group);
    });
    refill(find("groups"), this.#groups.map(({ element }) => element));
    find("another-class").hidden = !this.#groups.some((group) => this.#count(group));
    this.showHint();
  }

  #count(group) {
    const pending = group === this.#active && this.#on.pending();
    return group.items.filter((item) => !item.unreadable).length + (pending ? 1 : 0);
  }

  #renderTiles(group) {
    group.items.forEach((item, index) => this.update(item, index));
    const tiles = group.items.slice(0, SHOWN).map(({ element }) => element);
    const more = group.items.length - SHOWN;
    if (more > 0) tiles.push(make("li", { className: "tile more", textContent: `+ ${more}` }));
    const pending = group === this.#active ? this.#on.pending() : null;
    if (pending) tiles.push(make("li", { className: "tile now" }, pending));
    refill(group.tray, [...tiles, ...group.slots.slice(tiles.length)]);
  }

  /** Makes an item's tile, which stays: a click must not be lost because a prediction came. */
  #makeTile(item) {
    const remove = make("button", { type: "button", className: "remove", textContent: "×" });
    remove.addEventListener("click", () => this.#remove(item));
    const image = make("img", { src: item.url, alt: "" });
    if (item.drawn) return make("li", { className: "tile" }, image, remove);
    const properties = { type: "button", className: "choose", title: item.title };
    const select = make("button", properties, image, make("span"));
    select.addEventListener("click", () => {
      this.selected = item;
      this.#on.selected(item);
    });
    return make("li", { className: "tile" }, select, remove);
  }

  /** Writes what is known of an item into its tile. */
  update(item, index = this.#indexOf(item)) {
    const [select, remove] = item.element.children;
    const title = `${item.drawn ? "drawing" : "image"} ${index + 1}`;
    remove.ariaLabel = `Remove ${title}`;
    if (item.drawn) {
      select.alt = title;
      return;
    }
    const caption = captionOf(item);
    item.element.classList.toggle("bad", item.unreadable);
    select.querySelector("span").textContent = caption;
    select.ariaPressed = String(item === this.#selected);
    select.ariaLabel = [`${title}, ${item.title}`, caption].filter(Boolean).join(": ");
  }

  #indexOf(item) {
    const group = this.#groups.find(({ items }) => items.includes(item));
    return group ? group.items.indexOf(item) : 0;
  }

  /** Says below the names how many images there are, or what is missing; labels the button. */
  showHint(missing = "") {
    const filled = this.#groups.filter((group) => this.#count(group));
    const name = nameOf(this.#active);
    const known = this.#known.has(name);
    const hint = find("teach-hint");
    const addition = `${name} is known: what you show is added to it.`;
    hint.textContent = missing || (known ? addition : this.#progress());
    hint.classList.toggle("missing", Boolean(missing));
    const label = known && filled.length < 2 ? "Add" : "Teach";
    find("teach-button").textContent =
      filled.length > 1 ? `Teach ${count(filled.length, "class", "classes")}` : label;
    if (missing) announce(missing);
  }

  #progress() {
    const word = this.#on.word();
    const total = this.#count(this.#active);
    if (!total) return `Five ${word}s make a good start.`;
    return total >= ENOUGH ? `${count(total, word)}: good.` : `${total} of ${ENOUGH}`;
  }
}

const nameOf = (group) => cleanName(group.input.value);

function captionOf({ unreadable, prediction, busy }) {
  if (unreadable) return "unreadable";
  if (!prediction) return busy ? "…" : "";
  return prediction.known ? prediction.classes[0].name : "none";
}
