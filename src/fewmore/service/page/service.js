// Requests to the service: the token, waiting when it is busy, and its errors as sentences.

const TOKEN = "fewmore-token";
const PATIENCE = 6; // how often a busy service is asked again

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Takes the token out of the address (…/#token=…), where `fewmore serve` prints it, so that it does not stay in the address bar. */
export function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  sessionStorage.setItem(TOKEN, token);
  history.replaceState(null, "", location.pathname + location.search);
}

/** Must become a function (what is wrong with the last one) → promise of a token, or of null when the person has none to give. */
let askForToken = async () => null;
export const onTokenNeeded = (ask) => (askForToken = ask);

let asking = null;
async function renewToken(used, wrong) {
  if (sessionStorage.getItem(TOKEN) !== used) return true; // another request has asked meanwhile
  asking ??= askForToken(used ? wrong : "").finally(() => (asking = null));
  const token = await asking;
  if (token) sessionStorage.setItem(TOKEN, token);
  return Boolean(token);
}

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

async function problemOf(response) {
  const problem = await response.json().catch(() => ({}));
  return new Problem(response.status, problem.detail || `the service answered ${response.status} ${response.statusText}`);
}

async function call(method, path, body = null, headers = {}) {
  for (let attempt = 0; ; attempt++) {
    const token = sessionStorage.getItem(TOKEN);
    const authorization = token ? { Authorization: `Bearer ${token}` } : {};
    let response;
    try {
      response = await fetch(path, { method, body, headers: { ...headers, ...authorization } });
    } catch {
      throw new Problem(0, "The service does not answer: start it again with fewmore serve, then try once more.");
    }
    if (response.ok) return response;
    if ((response.status === 429 || response.status === 503) && attempt < PATIENCE) {
      await pause(Number(response.headers.get("Retry-After")) || 1);
      continue;
    }
    const problem = await problemOf(response);
    if (response.status !== 401 || !(await renewToken(token, problem.message))) throw problem;
  }
}

const read = async (path) => (await call("GET", path)).json();

/** A change carries a key of its own: when it is sent again because the service was busy, it is still made once. */
async function change(method, path, body = null, headers = {}) {
  const key = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return (await call(method, path, body, { ...headers, "Idempotency-Key": key })).json();
}

function form(images, fields = {}) {
  const data = new FormData();
  for (const [key, value] of Object.entries(fields)) data.append(key, value);
  images.forEach((image, index) => data.append("images", image, image.name || `image-${index + 1}.png`));
  return data;
}

const named = (name) => `api/classes?name=${encodeURIComponent(name)}`;

export const model = () => read("api/model");
export const sessions = () => read("api/sessions");
export const map = () => read("api/map");
export const undo = () => change("POST", "api/sessions/undo");
export const teach = (name, images) => change("POST", "api/classes", form(images, { name }));
export const add = (name, images) => change("POST", "api/classes/images", form(images, { name }));
export const forget = (name) => change("DELETE", named(name));
export const rename = (name, to) => change("PATCH", named(name), JSON.stringify({ name: to }), { "Content-Type": "application/json" });
export const predict = async (image) => (await call("POST", "api/predict?top=5", form([image]))).json();

export async function classes() {
  const known = [];
  for (;;) {
    const page = await read(`api/classes?offset=${known.length}&limit=1000`);
    known.push(...page.classes);
    if (!page.classes.length || known.length >= page.total) return known;
  }
}

/** A blob: address for a file of the service, fetched with the token, which neither <img> nor a link can carry. */
export async function file(path) {
  const response = await call("GET", path.replace(/^\//, ""));
  return URL.createObjectURL(await response.blob());
}
