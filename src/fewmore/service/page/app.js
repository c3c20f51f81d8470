// Loads what the service knows, and updates the page after every change.

import * as api from "./service.js";
import { count, find, make, percent, refill } from "./dom.js";
import { Gallery } from "./gallery.js";
import { History } from "./history.js";
import { ClassMap } from "./map.js";
import * as notice from "./notice.js";
import { Stage } from "./stage.js";
import { Test } from "./test.js";

let version = null; // of the model that the page shows
let own = null; // the version that the last change of this page led to, if nothing came between
let loading = null;
let loads = 0; // started so far
let known = []; // names of the classes
let isPrivate = false; // reading needs the token, too

const stage = new Stage(checkVersion, showTaught);
const gallery = new Gallery((name) => stage.addTo(name), showChange, () => own ?? version);
const history = new History();
const map = new ClassMap();
new Test(() => known);

/** Reloads if a response has another version than the page shows: another client has changed it. */
function checkVersion(latest) {
  if (version === null || latest === version) return;
  // All who wait look again: the first one reloads, and the others wait for that.
  if (loading) loading.then((loaded) => loaded && latest > version && checkVersion(latest));
  else refresh();
}

function refresh() {
  const latest = notice.attempt(load, refresh).finally(() => {
    if (loading === latest) loading = null;
  });
  loading = latest;
  return latest;
}

async function load() {
  const current = ++loads;
  const model = await api.model();
  const [classes, changes] = await Promise.all([api.classes(), api.changes()]);
  await released();
  if (current !== loads) return loading ?? true; // a later load has newer data: wait for that
  const first = version === null;
  const changed = version !== model.version;
  version = model.version;
  own = null;
  if (first) await stage.restore(model.demo ? "drawing" : "images");
  known = classes.map(({ name }) => name);
  stage.setClasses(known, model.limits.images);
  isPrivate = model.token === "everything";
  gallery.show(classes, isPrivate);
  history.show(changes);
  showUndo(changes);
  showModel(model);
  notice.attempt(async () => map.show(await api.map())); // the cards do not wait for it
  if (changed && !first) stage.predictAgain();
  if (first) api.follow(checkVersion, () => stage.predictAgain());
  return true;
}

/**
 * Waits until no button of the mouse is pressed, and no finger: what is pressed must not move away
 * before it is released.
 */
async function released() {
  const until = Date.now() + 3000; // a release outside of the window is not reported
  while (pressed && Date.now() < until) await new Promise((resolve) => setTimeout(resolve, 30));
}

let pressed = false;
addEventListener("pointerdown", () => (pressed = true), true);
for (const end of ["pointerup", "pointercancel"]) {
  addEventListener(end, () => setTimeout(() => (pressed = false)), true); // the click comes first
}

/** After a change made on this page: reloads everything, and offers to undo that change. */
function showChange(changed, ...sentences) {
  return showChanges([changed], sentences);
}

/** The same for several changes, which are undone together if nothing came between. */
async function showChanges(all, sentences, error = false) {
  for (const { version: led } of all) noteOwn(led);
  if (!(await refresh())) return;
  const made = all.filter(({ added }) => added !== 0); // 0: nothing was changed
  const together = made.every(({ version: led }, index) => led === made[0].version + index);
  const undoable = made.length > 0 && together && !find("undo").disabled;
  const action = { label: "Undo", run: () => undo(made.at(-1).version, made.length) };
  notice.show(sentences, { error, action: undoable ? action : null });
}

/** Notes that a change of this page led to a version. */
function noteOwn(led) {
  if (led === (own ?? version) + 1) own = led;
}

/** Says what was learnt; `problem` is why the rest was not, or null. */
function showTaught(all, problem) {
  const names = [...new Set(all.map(({ name }) => name))]; // many images come in several requests
  const sentences = names.map((name) => {
    const ofClass = all.filter((one) => one.name === name);
    const added = ofClass.reduce((sum, one) => sum + one.added, 0);
    if (!added) return `${name} is as it was.`;
    const images = count(added, "image");
    return ofClass[0].known ? `${name} has ${images} more.` : `Learnt ${name} from ${images}.`;
  });
  const short = `Learnt ${count(names.length, "class", "classes")}.`;
  const some = sentences.length > 5 ? [short] : sentences;
  const texts = [...some, ...all.flatMap(({ warnings }) => warnings)];
  showChanges(all, problem ? [problem.message, ...texts] : texts, Boolean(problem));
}

let undoing = Promise.resolve(); // each undo waits for those before it

/** Undoes the changes that led to a version; without one, the last change that is left. */
function undo(undoable = null, changes = 1) {
  undoing = undoing.then(() => {
    if (undoable !== null) return takeBack(undoable, changes);
    return find("undo").disabled || takeBack(own ?? version, 1);
  });
}

/** Takes back the changes that led to a version; if others came behind it, nothing. */
async function takeBack(undoable, changes) {
  const undone = [];
  const done = await notice.attempt(async () => {
    let latest = undoable;
    for (; undone.length < changes; ) {
      const response = await api.undo(latest);
      latest = response.version;
      noteOwn(latest);
      undone.push(response.undone);
    }
    return true;
  });
  if (!undone.length || !(await refresh()) || !done) return;
  const texts = undone.map((text) => text.replace(/^undone: | \([-:0-9TZ]+\)$/g, ""));
  notice.show([`Undone: ${texts.join(", ")}.`]);
}

function showUndo({ sessions, undoable }) {
  const last = sessions.at(-1);
  const button = find("undo");
  // A disabled button loses the focus: move it first.
  if (!undoable && document.activeElement === button) find("classes-title").focus();
  button.disabled = !undoable;
  button.title = undoable ? `Undo the ${last.text} (Ctrl+Z)` : "Nothing to undo";
}

/** Undoes with Ctrl+Z, or ⌘Z, unless a text is being typed. */
function undoByKey(event) {
  const typing = event.target.matches?.("input:not([type=radio], [type=file]), dialog *");
  if (event.key !== "z" || !(event.ctrlKey || event.metaKey) || event.shiftKey || typing) return;
  event.preventDefault();
  find("undo").click();
}

function showModel(model) {
  document.title = `${model.name} · fewmore`;
  find("model-name").textContent = model.name;
  const size = model.image_size;
  const facts = [
    count(model.classes, "class", "classes"),
    count(model.images, "image"),
    model.backbone,
    `sees ${size} × ${size} pixels`,
  ];
  if (model.accuracy !== null) facts.push(`${percent(model.accuracy)} right when it was made`);
  find("facts").textContent = facts.join(" · ");
  refill(find("notes"), model.notes.map((text) => make("li", { textContent: text })));
}

/** Opens a dialog; `wrong` says that the previous token was not the right one. */
function askForToken(wrong) {
  const dialog = find("token-dialog");
  find("token-wrong").hidden = !wrong;
  find("token").value = "";
  dialog.showModal();
  find("token").focus();
  return new Promise((resolve) => {
    let token = null;
    find("token-form").onsubmit = (event) => {
      event.preventDefault();
      token = find("token").value.trim();
      if (token) dialog.close();
    };
    find("token-cancel").onclick = () => dialog.close();
    takePasted = (pasted) => {
      token = pasted;
      dialog.close();
    };
    dialog.onclose = () => resolve(token);
  });
}

let takePasted = () => {}; // takes a token that comes in the address while the dialog is open

/** Downloads a file of the model; making it may take seconds. */
async function download(button, path, ending) {
  if (button.ariaBusy === "true") return;
  button.ariaBusy = "true";
  if (ending === "onnx") notice.show(["The ONNX file is made and checked: it takes some seconds."]);
  const href = await notice.attempt(() => api.file(path));
  button.ariaBusy = null;
  if (!href) return;
  make("a", { href, download: `${find("model-name").textContent}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000); // by then the browser has saved it
}

/**
 * Copies the address of the model file; where that needs the token, which no link can send, of this
 * page; and says what to do where nobody could open either.
 */
async function share() {
  const link = new URL(isPrivate ? "." : "api/model/file", location.href).href;
  const local = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  if (local) {
    const sentence = "This address works on this machine alone. Download the model file and send ";
    const more = "it: fewmore serve and fewmore predict open it anywhere.";
    notice.show([sentence + more]);
    return;
  }
  const copied = await navigator.clipboard?.writeText(link).then(() => true, () => false);
  const token = "Others open it with the token, and download the model there.";
  const open = "Who opens it downloads the model as it is then.";
  notice.show([copied ? `Copied: ${link}` : link, isPrivate ? token : open]);
}

api.onTokenNeeded(askForToken);
api.onOutdated(checkVersion);
find("undo").addEventListener("click", () => undo());
addEventListener("keydown", undoByKey);
for (const [id, path, ending] of [
  ["download", "api/model/file", "fewmore"],
  ["export", "api/model/onnx", "onnx"],
]) {
  find(id).addEventListener("click", ({ target }) => download(target, path, ending));
}
find("share").addEventListener("click", share);
addEventListener("hashchange", () => {
  const token = api.takeToken();
  if (token) takePasted(token);
});
api.takeToken();
refresh();
