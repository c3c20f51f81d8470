// The page as a whole: loads what the service knows, and keeps it in step with every change.

import * as api from "./service.js";
import { count, find, make, percent, refill } from "./dom.js";
import { Gallery } from "./gallery.js";
import { ClassMap } from "./map.js";
import * as notice from "./notice.js";
import { Stage } from "./stage.js";

let version = null; // of the model that the page shows
let loading = null;
let loads = 0; // begun so far

const stage = new Stage(follow, learnt);
const gallery = new Gallery((name) => stage.addTo(name), changed);
const map = new ClassMap();

/** An answer of another version than the page shows: somebody else has taught it something. */
function follow(latest) {
  if (version !== null && latest !== version && !loading) refresh();
}

function refresh() {
  loading = notice.attempt(load, refresh).finally(() => (loading = null));
  return loading;
}

async function load() {
  const mine = ++loads;
  const model = await api.model();
  const [classes, history, places] = await Promise.all([api.classes(), api.sessions(), api.map()]);
  if (mine !== loads) return true; // a later one knows more
  const first = version === null;
  const other = version !== model.version;
  version = model.version;
  if (first && model.demo) stage.switchTo("drawing");
  stage.know(classes.map(({ name }) => name), model.limits.images);
  gallery.show(classes, model.token === "everything");
  map.show(places);
  showHistory(history);
  showModel(model);
  if (other && !first) stage.lookAgain();
  return true;
}

/** After a change of this page's own: everything anew, and the way back. */
async function changed(...sentences) {
  if (!(await refresh())) return;
  notice.show(sentences, { action: find("undo").disabled ? null : { label: "Undo", run: undo } });
}

function learnt(answer, known) {
  const images = count(answer.added, "image");
  const done = known ? `${answer.name} has ${images} more.` : `Learnt ${answer.name} from ${images}.`;
  changed(answer.added ? done : `${answer.name} is as it was.`, ...answer.warnings);
}

async function undo() {
  const answer = await notice.attempt(api.undo);
  if (answer && (await refresh())) notice.show([answer.undone]);
}

function showHistory({ sessions, undoable }) {
  const last = sessions.at(-1);
  const button = find("undo");
  if (!undoable && document.activeElement === button) find("classes-title").focus(); // a disabled button keeps no focus
  button.disabled = !undoable;
  button.title = undoable ? `Undo: ${last.text}` : "Nothing to undo";
  const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
  const rows = [...sessions].reverse().map(({ text, when, kind }) => {
    const moment = make("time", { dateTime: when, textContent: day.format(new Date(when)) });
    return make("li", { className: kind }, make("span", { textContent: text }), moment);
  });
  refill(find("history"), rows);
}

function showModel(model) {
  document.title = `${model.name} · fewmore`;
  find("model-name").textContent = model.name;
  const size = model.image_size;
  const facts = [count(model.classes, "class", "classes"), count(model.images, "image"), model.backbone, `sees ${size} × ${size} pixels`];
  if (model.accuracy !== null) facts.push(`${percent(model.accuracy)} right when it was made`);
  find("facts").textContent = facts.join(" · ");
  refill(find("notes"), model.notes.map((text) => make("li", { textContent: text })));
}

/** A dialog; `wrong` is what the service says of the token before, if there was one. */
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
  setTimeout(() => URL.revokeObjectURL(href), 60_000); // by then the browser has it
}

api.onTokenNeeded(askForToken);
find("undo").addEventListener("click", undo);
find("download").addEventListener("click", download);
addEventListener("hashchange", api.takeToken);
api.takeToken();
refresh();
