// Show the model's answers, and teach it classes that stay in this browser.

import { combine, learn } from "./learning.js";
import { loadModel, readPixels } from "./model.js";

const find = (id) => document.getElementById(id);
const percent = (share) => `${Math.round(100 * share)} %`;
const photos = (count) => `${count} photo${count === 1 ? "" : "s"}`;
const SHOWN = 5; // classes in an answer

let model;
let learnt = [];
let last = null; // what the model says of the photo that is shown
let looks = 0; // photos that were given: only the answer to the latest one is shown

start();

async function start() {
  try {
    model = await loadModel();
  } catch (error) {
    find("status").textContent =
      location.protocol === "file:"
        ? "A browser does not load a model from a file: serve this folder, for example with " +
          "python -m http.server"
        : `The model cannot be loaded: ${error.message}`;
    return;
  }
  const { about } = model;
  learnt = about.learns ? readStored() : [];
  find("status").textContent = `${about.classes.length} classes, ${megabytes(about.bytes)}. ` +
    "Photos stay in this browser.";
  find("names").textContent = about.classes.join(", ");
  find("fixed").hidden = about.learns;
  find("lesson").hidden = !about.learns;
  for (const id of ["photo", "lesson-photos", "learn"]) find(id).disabled = false;
  find("photo").addEventListener("change", () => look(find("photo").files));
  find("lesson").addEventListener("submit", (event) => {
    event.preventDefault();
    teach(find("name").value.normalize("NFC").trim(), find("lesson-photos").files);
  });
  find("lesson-photos").addEventListener("change", () => {
    const { length } = find("lesson-photos").files;
    find("chosen").textContent = length ? photos(length) : "none yet";
  });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    look(event.dataTransfer.files);
  });
  addEventListener("paste", (event) => look(event.clipboardData.files));
  addEventListener("storage", ({ key }) => {
    if (!about.learns || (key !== null && key !== storageKey())) return;
    learnt = readStored(); // another tab has learnt or forgotten
    showLearnt();
    showAnswer();
  });
  showLearnt();
  document.body.dataset.ready = "true";
}

async function look(files) {
  const file = files[0];
  if (!file) return;
  const current = ++looks;
  find("photo").value = "";
  find("answer").setAttribute("aria-busy", "true");
  try {
    const said = await model.run(await readPixels(file));
    if (current !== looks) return;
    last = said;
    URL.revokeObjectURL(find("preview").src);
    find("preview").src = URL.createObjectURL(file);
    showAnswer();
  } catch {
    if (current !== looks) return;
    last = null;
    find("answer").hidden = true;
    find("problem").textContent = `${file.name} cannot be read as an image: take a JPEG or PNG.`;
  } finally {
    if (current === looks) find("answer").removeAttribute("aria-busy");
  }
}

async function teach(name, files) {
  const problem = nameProblem(name) || (files.length ? "" : "Choose some photos of it.");
  find("lesson-problem").textContent = problem;
  if (problem) return;
  const features = [];
  find("learn").disabled = true;
  try {
    for (const file of files) {
      find("progress").textContent = `${file.name} …`;
      try {
        features.push((await model.run(await readPixels(file))).features);
      } catch {
        find("lesson-problem").textContent =
          `${file.name} cannot be read as an image: nothing was learnt.`;
        return;
      }
    }
  } finally {
    find("progress").textContent = "";
    find("learn").disabled = false;
  }
  const known = learnt.find((one) => one.name === name);
  const next = learn(known, name, features);
  setLearnt(known ? learnt.map((one) => (one === known ? next : one)) : [...learnt, next]);
  find("progress").textContent = `${name} is learnt from ${photos(next.count)}.`;
  find("lesson").reset();
  find("chosen").textContent = "none yet";
}

function nameProblem(name) {
  if (!name) return "Give the class a name.";
  if (name.toLowerCase() === model.about.none) return `No class can be named ${name}.`;
  if (!model.about.classes.includes(name)) return "";
  return `${name} is in the model already. This page adds new classes; \`fewmore learn\` adds ` +
    "photos to the others.";
}

function showAnswer() {
  if (!last) return;
  find("problem").textContent = "";
  const { ranked, known } = combine(model.about, last, learnt);
  find("label").textContent = known ? ranked[0].name : model.about.none;
  find("hint").textContent = known
    ? `${percent(ranked[0].confidence)} sure`
    : `closest: ${ranked[0].name}`;
  find("bars").replaceChildren(
    ...ranked.slice(0, SHOWN).map(({ name, confidence }) => {
      const row = document.createElement("li");
      const bar = document.createElement("span");
      bar.className = "bar";
      bar.append(document.createElement("span"));
      bar.firstChild.style.width = `${100 * confidence}%`;
      row.dataset.confidence = confidence;
      row.append(text("span", name), bar, text("span", percent(confidence)));
      return row;
    }),
  );
  find("answer").hidden = false;
}

function showLearnt() {
  find("learnt").replaceChildren(
    ...learnt.map((one) => {
      const row = document.createElement("li");
      const button = text("button", "Forget");
      button.type = "button";
      button.setAttribute("aria-label", `Forget ${one.name}`);
      button.addEventListener("click", () => setLearnt(learnt.filter((other) => other !== one)));
      row.append(text("span", one.name), text("small", photos(one.count)), button);
      return row;
    }),
  );
}

function setLearnt(classes) {
  learnt = classes;
  try {
    localStorage.setItem(storageKey(), JSON.stringify(learnt));
  } catch {
    find("lesson-problem").textContent =
      "This browser stores nothing: what was learnt is gone when the page is closed.";
  }
  showLearnt();
  showAnswer();
}

function readStored() {
  try {
    return JSON.parse(localStorage.getItem(storageKey())) ?? [];
  } catch {
    return [];
  }
}

const storageKey = () => `fewmore-${model.about.hash}`;
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

function text(tag, content) {
  const element = document.createElement(tag);
  element.textContent = content;
  return element;
}
