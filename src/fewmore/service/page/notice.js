// The message at the foot of the page: what was done, or what went wrong, with one thing to do about it.

import { find, make, say } from "./dom.js";

const STAYS = 12_000; // milliseconds; an error stays until it is closed

const box = find("notice");
let timer = 0;

export function hide() {
  clearTimeout(timer);
  box.hidden = true;
}

/** Shows the sentences; action = {label, run} is a button beside them. */
export function show(sentences, { error = false, action = null } = {}) {
  clearTimeout(timer);
  box.role = error ? "alert" : null;
  box.classList.toggle("error", error);
  box.hidden = false;
  find("notice-text").replaceChildren(...sentences.map((text) => make("p", { textContent: text })));
  const button = find("notice-action");
  button.hidden = !action;
  button.textContent = action?.label ?? "";
  button.onclick = action && (() => {
    hide();
    action.run();
  });
  if (error) return;
  say("");
  say(sentences.join(" "));
  timer = setTimeout(fade, STAYS);
}

/** Goes away by itself, but not from under somebody's hand. */
function fade() {
  if (box.matches(":hover, :focus-within")) timer = setTimeout(fade, STAYS);
  else hide();
}

/** Runs an action; what goes wrong is shown in the service's own words. Gives null then. */
export async function attempt(action, retry = null) {
  try {
    return await action();
  } catch (problem) {
    show([problem.message], { error: true, action: retry && { label: "Try again", run: retry } });
    return null;
  }
}

find("notice-close").addEventListener("click", hide);
