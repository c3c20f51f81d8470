// Loads what the service knows, and updates the page after every change.

import * as api from "./service.js";
import { count, find, make, percent, refill } from "./dom.js";
import { Gallery } from "./gallery.js";
import { ClassMap } from "./map.js";
import * as notice from "./notice.js";
import { Stage } from "./stage.js";

let version = null; // of the model that the page shows
let own = null; // the version that the last change of this page led to, if nothing came between
let loading = null;
let loads = 0; // started so far

const stage = new Stage(checkVersion, showTaught);
const gallery = new Gallery((name) => stage.addTo(name), showChange, () => own ?? version);
const map = new ClassMap();

/** Reloads if a response has another version than the page shows: another client has changed it. */
function checkVersion(latest) {
  if (version === null || latest === version) return;
  if (loading) loading.then(() => latest > version && refresh());
  else refresh();
}

function refresh() {
  loading = notice.attempt(load, refresh).finally(() => (loading = null));
  return loading;
}

async function load() {
  const current = ++loads;
  const model = await api.model();
  const [classes, history, places] = await Promise.all([api.classes(), api.changes(), api.map()]);
  if (current !== loads) return true; // a later load has newer data
  const first = version === null;
  const changed = version !== model.version;
  version = model.version;
  own = null;
  if (first && model.demo) stage.switchTo("drawing");
  stage.setClasses(classes.map(({ name }) => name), model.limits.images);
  gallery.show(classes, model.token === "everything");
  map.show(places);
  showHistory(history);
  showModel(model);
  if (changed && !first) stage.predictAgain();
  if (first) api.follow(checkVersion);
  return true;
}

/** After a change made on this page: reloads everything, and offers to undo that change. */
async function showChange(changed, ...sentences) {
  if (changed.version === (own ?? version) + 1) own = changed.version;
  if (!(await refresh())) return;
  const undoable = changed.added !== 0 && !find("undo").disabled; // 0: nothing was changed
  const action = { label: "Undo", run: () => undo(changed.version) };
  notice.show(sentences, { action: undoable ? action : null });
}

function showTaught(taught, known) {
  const images = count(taught.added, "image");
  const added = known
    ? `${taught.name} has ${images} more.`
    : `Learnt ${taught.name} from ${images}.`;
  showChange(taught, taught.added ? added : `${taught.name} is as it was.`, ...taught.warnings);
}

/** Takes back the change that led to a version; if others came behind it, nothing. */
async function undo(undoable) {
  const response = await notice.attempt(() => api.undo(undoable));
  if (response && (await refresh())) notice.show([response.undone]);
}

function showHistory({ sessions, undoable }) {
  const last = sessions.at(-1);
  const button = find("undo");
  // A disabled button loses the focus: move it first.
  if (!undoable && document.activeElement === button) find("classes-title").focus();
  button.disabled = !undoable;
  button.title = undoable ? `Undo: ${last.text}` : "Nothing to undo";
  const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
  const rows = [...sessions].reverse().map(({ text, when, kind }) => {
    const time = make("time", { dateTime: when, textContent: day.format(new Date(when)) });
    return make("li", { className: kind }, make("span", { textContent: text }), time);
  });
  refill(find("history"), rows);
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

/** Opens a dialog; `wrong` is the service's message about the previous token, if there was one. */
function askForToken(wrong) {
  const dialog = find("token-dialog");
  find("token-wrong").textContent = wrong;
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
    dialog.onclose = () => resolve(token);
  });
}

async function download() {
  const href = await notice.attempt(() => api.file("api/model/file"));
  if (!href) return;
  make("a", { href, download: `${find("model-name").textContent}.fewmore` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000); // by then the browser has saved it
}

api.onTokenNeeded(askForToken);
api.onOutdated(checkVersion);
find("undo").addEventListener("click", () => undo(version));
find("download").addEventListener("click", download);
addEventListener("hashchange", api.takeToken);
api.takeToken();
refresh();
