// Shows a prediction: a headline and bars, and the same as a sentence for screen readers.

import { announce as speak, find, make, percent } from "./dom.js";

const ROWS = 5;

/** Shows a prediction; without one, shows the sentence. */
export function show(prediction, sentence = "") {
  const verdict = find("verdict");
  verdict.className = verdictClass(prediction);
  verdict.textContent = prediction ? headline(prediction) : sentence;
  const classes = prediction?.classes ?? [];
  const list = find("bars");
  list.classList.toggle("unknown", prediction?.known === false);
  while (list.children.length < ROWS) list.append(makeRow());
  [...list.children].forEach((row, index) => {
    const { name = "", confidence = 0 } = classes[index] ?? {};
    row.hidden = Boolean(prediction) && index >= classes.length;
    row.ariaHidden = prediction ? null : "true";
    row.querySelector(".name").textContent = name;
    row.querySelector(".share").textContent = prediction ? percent(confidence) : "";
    row.querySelector("b").style.width = `${confidence * 100}%`;
  });
}

/** Announces a prediction to screen readers; without one, announces the problem. */
export function announce(prediction, problem = "") {
  if (!prediction) speak(problem);
  else speak(prediction.known ? `It sees ${prediction.classes[0].name}` : "None of these");
}

function headline(prediction) {
  return prediction.known ? prediction.classes[0].name : "None of these";
}

function verdictClass(prediction) {
  if (!prediction) return "verdict resting";
  return prediction.known ? "verdict" : "verdict unknown";
}

function makeRow() {
  const name = make("span", { className: "name" });
  const share = make("span", { className: "share" });
  const bar = make("i", { ariaHidden: "true" }, make("b"));
  return make("li", {}, name, share, bar);
}
