// The history of changes, the latest first, some at a time.

import * as api from "./service.js";
import { count, find, make, refill } from "./dom.js";
import * as notice from "./notice.js";

const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

export class History {
  #sessions = []; // the oldest first

  constructor() {
    find("earlier").addEventListener("click", async () => {
      const first = find("history").children.length;
      const before = this.#sessions[0].number;
      const page = await notice.attempt(() => api.changes(before));
      if (!page) return;
      this.#sessions.unshift(...page.sessions);
      this.#render();
      find("history").children[first]?.scrollIntoView({ block: "nearest" });
      if (find("earlier").hidden) find("history").focus();
    });
  }

  show({ sessions }) {
    this.#sessions = [...sessions];
    this.#render();
  }

  #render() {
    const rows = this.#sessions.map((session) => {
      const { when, kind } = session;
      const time = make("time", { dateTime: when, textContent: day.format(new Date(when)) });
      const text = make("span", { textContent: describe(session) });
      // Not every kind: "rename" and "remove" are classes of other elements.
      return make("li", { className: kind === "learn" ? "learn" : "" }, text, time);
    });
    refill(find("history"), rows.reverse());
    find("earlier").hidden = !(this.#sessions[0]?.number > 0);
  }
}

function describe({ kind, classes, more, images }) {
  const of = count(images, "image");
  const some = classes.slice(0, 5).join(", ");
  const rest = classes.length - 5 + more;
  const names = rest > 0 ? `${some} and ${rest.toLocaleString()} more` : some;
  const sentences = {
    fit: `Trained on ${of} of ${names}`,
    learn: `Learnt ${names} from ${of}`,
    remove: `Removed ${of} from ${names}`,
    forget: `Forgot ${names}`,
    rename: `Renamed ${classes[0]} to ${classes[1]}`,
  };
  return sentences[kind] ?? `${kind}: ${names}`;
}
