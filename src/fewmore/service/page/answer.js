// What the model sees: a headline and bars, and the same in words for those who listen.

import { find, make, percent, say } from "./dom.js";

const ROWS = 5;

/** Shows a prediction; without one, the sentence. */
export function show(prediction, sentence = "") {
  const classes = prediction?.classes ?? [];
  const verdict = find("verdict");
  verdict.className = !prediction ? "verdict resting" : prediction.known ? "verdict" : "verdict unknown";
  verdict.textContent = !prediction ? sentence : prediction.known ? classes[0].name : "None of these";
  const list = find("bars");
  list.classList.toggle("unknown", prediction?.known === false);
  while (list.children.length < ROWS) {
    const bar = make("i", { ariaHidden: "true" }, make("b"));
    list.append(make("li", {}, make("span", { className: "name" }), make("span", { className: "share" }), bar));
  }
  [...list.children].forEach((row, index) => {
    const { name = "", confidence = 0 } = classes[index] ?? {};
    row.hidden = Boolean(prediction) && index >= classes.length;
    row.ariaHidden = prediction ? null : "true";
    row.querySelector(".name").textContent = name;
    row.querySelector(".share").textContent = prediction ? percent(confidence) : "";
    row.querySelector("b").style.width = `${confidence * 100}%`;
  });
}

export function announce(prediction, problem = "") {
  if (!prediction) say(problem);
  else say(prediction.known ? `It sees ${prediction.classes[0].name}` : "None of these");
}
