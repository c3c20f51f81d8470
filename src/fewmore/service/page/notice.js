// Shows a message at the foot of the page: what was done, or what went wrong, with one action.

import { announce, find, make } from "./dom.js";

const SHOWN_FOR = 12_000; // milliseconds; an error stays until it is closed

const box = find("notice");
let timer = 0;

let before = null; // what had the focus before it moved into the message

/** Hides the message; the focus, if it was in it, goes back to where it was. */
export function hide() {
  clearTimeout(timer);
  const focused = box.contains(document.activeElement);
  box.hidden = true;
  if (focused) (before?.isConnected ? before : find("stage")).focus({ preventScroll: true });
}

box.addEventListener("focusin", ({ relatedTarget }) => {
  if (!box.contains(relatedTarget)) before = relatedTarget;
});
box.addEventListener("keydown", (event) => event.key === "Escape" && hide());

/** Shows the sentences; action = {label, run} is a button beside them. */
export function show(sentences, { error = false, action = null } = {}) {
  clearTimeout(timer);
  box.role = error ? "alert" : "region";
  box.classList.toggle("error", error);
  box.hidden = false;
  const text = find("notice-text");
  text.replaceChildren(...sentences.map((sentence) => make("p", { textContent: sentence })));
  const button = find("notice-action");
  button.hidden = !action;
  button.textContent = action?.label ?? "";
  button.onclick = action && (() => {
    hide();
    action.run();
  });
  // What does not fit, on a phone or a zoomed page, is scrolled to with keys.
  if (text.scrollHeight > text.clientHeight) text.tabIndex = 0;
  else text.removeAttribute("tabindex");
  if (error) return;
  announce(""); // so that the same sentence is announced again
  announce(sentences.join(" "));
  timer = setTimeout(hideUnlessUsed, SHOWN_FOR);
}

/** Hides the message, unless the pointer or the focus is on it. */
function hideUnlessUsed() {
  if (box.matches(":hover, :focus-within")) timer = setTimeout(hideUnlessUsed, SHOWN_FOR);
  else hide();
}

/** Runs an action; on failure, shows the service's message and returns null. */
export async function attempt(action, retry = null) {
  try {
    return await action();
  } catch (problem) {
    show([problem.message], { error: true, action: retry && { label: "Try again", run: retry } });
    return null;
  }
}

find("notice-close").addEventListener("click", hide);
